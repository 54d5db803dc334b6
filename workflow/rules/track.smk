# Every run into MLflow, by one writer, after all else. Nothing waits on it or fails with it: where MLflow cannot be reached,
# the end of the run takes the output away (`try_tracking_again`), so that the next run tries again.


rule track:
    input:
        indexes=INDEXES,
        cells=rules.tables.output.cells,
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
        "python -m specrig track --study {params.study} 2>&1 | tee {log} >&2"
