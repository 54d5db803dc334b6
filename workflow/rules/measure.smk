# One job an engine, pair and method: all its cells share one loading of the models. It resumes cell by cell by itself.


rule measure:
    input:
        prompts=prompt_inputs,
        models=method_models,
    output:
        index=f"{ROOT}/records/{{engine}}/{{pair}}/{{method}}/index.json",
    log:
        f"{ROOT}/logs/measure/{{engine}}-{{pair}}-{{method}}.log",
    conda:
        "../../environment.yml"
    threads: ALL_CORES
    resources:
        gpu=GPU,
    params:
        study=STUDY_FILE,
        cells=job_cell_names,
        settings=job_settings,
        code=job_code,
        failed=failed_cells,
    message:
        "Measuring {wildcards.method} on {wildcards.pair} with {wildcards.engine}"
    shell:
        "python -m specrig measure --study {params.study} --engine {wildcards.engine} --pair {wildcards.pair}"
        " --method {wildcards.method} 2>&1 | tee {log} >&2"
