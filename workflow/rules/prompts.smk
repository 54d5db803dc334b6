# Fetches prompts from an address or the hub once and checks them against their pin. Local files are read in place.


rule prompts:
    output:
        f"{ROOT}/data/{{task}}.jsonl",
    log:
        f"{ROOT}/logs/prompts/{{task}}.log",
    conda:
        "../../environment.yml"
    params:
        study=STUDY_FILE,
        row=dag.task_row,
        code=stage_digest("prompts"),
    message:
        "Fetching the prompts of {wildcards.task}"
    shell:
        "python -m specrig stage prompts --study {params.study:q} --task {wildcards.task} 2>&1 | tee {log:q} >&2"
