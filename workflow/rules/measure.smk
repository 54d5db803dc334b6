# One job an engine, pair and method: all its cells share one loading of the models. It resumes cell by cell by itself.


rule measure:
    input:
        study=ancient(f"{ROOT}/study.json"),
        prompts=prompt_inputs,
        models=model_inputs,
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
        cells=job_cell_names,
        settings=job_settings,
        code=job_code,
    message:
        "Measuring {wildcards.method} on {wildcards.pair} with {wildcards.engine}"
    shell:
        "python -m specrig measure --study {input.study} --engine {wildcards.engine} --pair {wildcards.pair}"
        " --method {wildcards.method} 2>&1 | tee {log} >&2"
