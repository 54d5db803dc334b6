# Audits that lossless methods keep the target's output. A method that fails is struck through in the tables.
# The exact audits of an engine's methods are one job: a test takes seconds, and so does starting a job.


rule audit_exact:
    output:
        f"{ROOT}/audit/exact-{{engine}}.csv",
    log:
        f"{ROOT}/logs/audit/exact-{{engine}}.log",
    conda:
        "../../environment.yml"
    threads: dag.exact_threads
    resources:
        gpu=dag.gpu,
    params:
        study=STUDY_FILE,
        options=dag.audited_options,
        samples=STUDY.audit_samples,
        code=stage_digest("audit"),
    message:
        "Testing the samples of every method in {wildcards.engine} against an exact distribution"
    shell:
        ": > {log:q}; SPECRIG_ENGINE_LOG={log:q}"
        " python -m specrig stage audit-exact --study {params.study:q} --engine {wildcards.engine} --processes {threads}"
        " 2>&1 | tee -a {log:q} >&2"


rule audit:
    input:
        records=MEASURED,
        loaded=UNDER_LOAD,
    output:
        f"{ROOT}/audit/records.csv",
    log:
        f"{ROOT}/logs/audit/records.log",
    conda:
        "../../environment.yml"
    threads: dag.job_cores
    resources:
        gpu=dag.auditing_gpus,
        mem_mb=memory(dag.auditing),
        runtime=minutes(dag.auditing),
    params:
        study=STUDY_FILE,
        code=stage_digest("audit"),
    message:
        "Auditing every record"
    shell:
        "python -m specrig stage audit --study {params.study:q} 2>&1 | tee {log:q} >&2"
