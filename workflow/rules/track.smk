# Every run into MLflow, by one writer, after measuring. Nothing waits on it.


rule track:
    input:
        indexes=INDEXES,
        cells=rules.tables.output.cells,
        figures=rules.figures.output,
    output:
        touch(TRACKED),
    log:
        f"{ROOT}/logs/track.log",
    conda:
        "../../environment.yml"
    params:
        study=STUDY_FILE,
        code=stage_digest("track"),
    message:
        "Entering the runs into MLflow"
    shell:
        "python -m specrig track --study {params.study} 2>&1 | tee {log} >&2"
