# A job measures a method's servers under load, in turns with the baseline's; finished points are kept when it resumes.


rule traffic:
    input:
        dag.traffic_inputs,
    output:
        f"{ROOT}/under_load/{{engine}}/{{pair}}/{{method}}",
    log:
        f"{ROOT}/logs/traffic/{{engine}}-{{pair}}-{{method}}.log",
    conda:
        "../../environment.yml"
    threads: dag.job_cores
    resources:
        gpu=dag.measuring_gpus,
        mem_mb=memory(dag.under_load),
        runtime=minutes(dag.under_load),
    params:
        study=STUDY_FILE,
        loads=dag.loads,
        prompts=dag.traffic_tasks,
        settings=dag.job_settings,
        models=dag.pair_row,
        code=stage_digest("measuring"),
        failed=dag.failed_points,
    message:
        "Measuring {wildcards.method} under load on {wildcards.pair} with {wildcards.engine}"
    shell:
        ": > {log:q}; SPECRIG_ENGINE_LOG={log:q}"
        " python -m specrig stage traffic --study {params.study:q} --engine {wildcards.engine} --pair {wildcards.pair}"
        " --method {wildcards.method} 2>&1 | tee -a {log:q} >&2"
        " && date > {output:q}"
