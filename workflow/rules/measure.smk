# A job measures all cells of an engine and a pair in one replicate, or those of one method (the study's key `jobs`).
# It loads the models once, and keeps finished cells when it resumes. Each method has a folder for its records, in which
# replicates after the first have folders of their own.


rule measure:
    input:
        prompts=dag.job_prompts,
        models=dag.job_models,
    output:
        f"{ROOT}/measured/{{engine}}/{{pair}}/{{process}}{{again}}",
    log:
        f"{ROOT}/logs/measure/{{engine}}-{{pair}}-{{process}}{{again}}.log",
    priority: dag.measuring_priority
    conda:
        "../../environment.yml"
    threads: dag.job_cores
    resources:
        gpu=dag.measuring_gpus,
        mem_mb=memory(dag.measuring),
        runtime=minutes(dag.measuring),
    params:
        study=STUDY_FILE,
        cells=dag.job_cell_names,
        settings=dag.job_settings,
        code=dag.job_code,
        failed=dag.failed_cells,
        methods=dag.job_methods,
        chosen=dag.method_options,
        replicate=dag.replicate,
    message:
        "Measuring {params.methods} on {wildcards.pair} with {wildcards.engine}, replicate {params.replicate}"
    shell:
        ": > {log}; SPECRIG_ENGINE_LOG={log}"
        " python -m specrig measure --study {params.study} --engine {wildcards.engine} --pair {wildcards.pair}"
        " {params.chosen} --replicate {params.replicate} 2>&1 | tee -a {log} >&2"
        # Snakemake takes a small file of the same content for unchanged: tables would stay old if a run is cut before.
        " && date > {output}"
