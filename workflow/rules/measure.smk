# A job measures all cells of one engine, pair, method and replicate, and loads the models once. It keeps finished cells when it
# resumes. The records of the first replicate lie in the job's own folder, those of the others in folders below it. What the engine says
# goes into the log alone (`engines.said`); the terminal shows the job's own lines.


rule measure:
    input:
        prompts=prompt_inputs,
        models=method_models,
    output:
        index=f"{ROOT}/records/{{engine}}/{{pair}}/{{method}}{{again}}/index.json",
    log:
        f"{ROOT}/logs/measure/{{engine}}-{{pair}}-{{method}}{{again}}.log",
    priority: measuring_order
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
        replicate=replicate,
    message:
        "Measuring {wildcards.method} on {wildcards.pair} with {wildcards.engine}, replicate {params.replicate}"
    shell:
        ": > {log}; SPECRIG_ENGINE_LOG={log}"
        " python -m specrig measure --study {params.study} --engine {wildcards.engine} --pair {wildcards.pair}"
        " --method {wildcards.method} --replicate {params.replicate} 2>&1 | tee -a {log} >&2"
