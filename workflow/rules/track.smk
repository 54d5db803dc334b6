# Enters every run into MLflow, with one writer, after everything else. Nothing waits for it or fails with it.
# If MLflow cannot be reached, the output is deleted at the end of the run (`retry_tracking`): the next run tries again.


rule track:
    input:
        records=MEASURED,
        cells=f"{ROOT}/tables/cells.csv",
        figures=rules.figures.output,
        report=REPORT,
    output:
        touch(TRACKED),
    log:
        f"{ROOT}/logs/track.log",
    conda:
        "../../environment.yml"
    params:
        study=STUDY_FILE,
        store=TRACKING_STORE,
        code=stage_digest("track"),
    message:
        "Entering the runs into MLflow"
    shell:
        "python -m specrig stage track --study {params.study:q} 2>&1 | tee {log:q} >&2"
