# Computes tables and figures from the records, in seconds.


rule tables:
    input:
        records=MEASURED,
        audits=AUDITS,
        reported=REPORTED,
    output:
        cells=report(
            f"{ROOT}/tables/cells.csv",
            caption="../report/cells.rst",
            category="Tables",
            labels={"table": "every cell"},
        ),
        speedup=report(
            f"{ROOT}/tables/speedup.csv",
            caption="../report/speedup.rst",
            category="Tables",
            labels={"table": "speedup by method and task"},
        ),
        acceptance=report(
            f"{ROOT}/tables/acceptance.csv",
            caption="../report/acceptance.rst",
            category="Tables",
            labels={"table": "acceptance by method and task"},
        ),
        engines=report(
            f"{ROOT}/tables/engines.csv",
            caption="../report/engines.rst",
            category="Tables",
            labels={"table": "engines side by side"},
        ),
        reproduction=report(
            f"{ROOT}/tables/reproduction.csv",
            caption="../report/reproduction.rst",
            category="Tables",
            labels={"table": "reported against measured"},
        ),
        optimal_k=report(
            f"{ROOT}/tables/optimal_k.csv",
            caption="../report/optimal_k.rst",
            category="Tables",
            labels={"table": "optimal k"},
        ),
        order=report(
            f"{ROOT}/tables/order.csv",
            caption="../report/order.rst",
            category="Tables",
            labels={"table": "order of methods, reported and measured"},
        ),
        order_changes=report(
            f"{ROOT}/tables/order_changes.csv",
            caption="../report/order.rst",
            category="Tables",
            labels={"table": "methods that changed places, and why"},
        ),
        texts=expand(
            f"{ROOT}/tables/{{name}}.{{kind}}",
            name=TABLE_NAMES,
            kind=["md", "tex"],
        ),
        simulated=multiext(f"{ROOT}/tables/simulated", ".csv", ".md", ".tex"),
    log:
        f"{ROOT}/logs/tables.log",
    conda:
        "../../environment.yml"
    params:
        study=STUDY_FILE,
        code=stage_digest("tables"),
    message:
        "Compiling the tables"
    shell:
        "python -m specrig tables --study {params.study} 2>&1 | tee {log} >&2"


rule quality:
    input:
        records=MEASURED,
        prompts=dag.prompt_files(dag.scored),
    output:
        report(
            f"{ROOT}/tables/quality.csv",
            caption="../report/quality.rst",
            category="Tables",
            labels={"table": "quality of the outputs"},
        ),
        texts=multiext(f"{ROOT}/tables/quality", ".md", ".tex"),
    log:
        f"{ROOT}/logs/quality.log",
    conda:
        "../../environment.yml"
    params:
        study=STUDY_FILE,
        scored=dag.scoring(),
        code=stage_digest("quality"),
    message:
        "Scoring the outputs"
    shell:
        "python -m specrig quality --study {params.study} 2>&1 | tee {log} >&2"


rule figures:
    input:
        records=MEASURED,
        audits=AUDITS,
        cells=rules.tables.output.cells,
        curves=CURVES,
    output:
        shown=[
            report(
                f"{ROOT}/figures/{name}.svg",
                caption=f"../report/{name}.rst",
                category="Figures",
                labels={"figure": name.replace("_", " ")},
            )
            for name in FIGURE_NAMES
        ],
        images=[f"{ROOT}/figures/{name}.png" for name in FIGURE_NAMES],
    log:
        f"{ROOT}/logs/figures.log",
    conda:
        "../../environment.yml"
    params:
        study=STUDY_FILE,
        code=stage_digest("figures"),
    message:
        "Drawing the figures"
    shell:
        "python -m specrig figures --study {params.study} 2>&1 | tee {log} >&2"
