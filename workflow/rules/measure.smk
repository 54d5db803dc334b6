# A job measures all cells of an engine and a pair in one replicate, or those of one method (the study's key `jobs`). It loads the
# models once, and keeps finished cells when it resumes. The records lie in a folder for each method, those of the first replicate in the
# folder itself, those of the others in folders below it.


rule measure:
    input:
        prompts=prompt_inputs,
        models=job_models,
    output:
        f"{ROOT}/measured/{{engine}}/{{pair}}/{{process}}{{again}}",
    log:
        f"{ROOT}/logs/measure/{{engine}}-{{pair}}-{{process}}{{again}}.log",
    priority: measuring_order
    conda:
        "../../environment.yml"
    threads: JOB_CORES
    resources:
        gpu=measuring_gpus,
        mem_mb=memory(measuring),
        runtime=minutes(measuring),
    params:
        study=STUDY_FILE,
        cells=job_cell_names,
        settings=job_settings,
        code=job_code,
        failed=failed_cells,
        methods=job_methods,
        chosen=lambda wildcards: [f"--method {name}" for name in job_methods(wildcards)],
        replicate=replicate,
    message:
        "Measuring {params.methods} on {wildcards.pair} with {wildcards.engine}, replicate {params.replicate}"
    shell:
        ": > {log}; SPECRIG_ENGINE_LOG={log}"
        " python -m specrig measure --study {params.study} --engine {wildcards.engine} --pair {wildcards.pair}"
        " {params.chosen} --replicate {params.replicate} 2>&1 | tee -a {log} >&2"
        # Snakemake takes a small file of the same content for unchanged, however new: tables would stay old if a run is cut before them.
        " && date > {output}"
