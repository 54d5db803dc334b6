# Converts each GGUF file once into a model folder, which every engine and every training can load.


rule convert:
    output:
        expand(f"{ROOT}/converted/{{{{source}}}}/{{file}}", file=CONVERTED_FILES),
    log:
        f"{ROOT}/logs/convert/{{source}}.log",
    # Before the audits, which no other job waits for.
    priority: 1
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=memory(dag.converting),
    params:
        study=STUDY_FILE,
        source=dag.converted,
        code=stage_digest("convert"),
    message:
        "Converting {wildcards.source} into a model folder"
    shell:
        "python -m specrig stage convert --study {params.study:q} --source {wildcards.source} 2>&1 | tee {log:q} >&2"
