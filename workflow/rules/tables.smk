# Computes tables and figures from the records, in seconds.


rule tables:
    input:
        records=MEASURED,
        loaded=UNDER_LOAD,
        audits=AUDITS,
        reported=REPORTED,
    output:
        data=[
            report(
                f"{ROOT}/tables/{name}.csv",
                caption=f"../report/table-{name}.rst",
                category="Tables",
                labels={"table": name.replace("_", " ")},
            )
            for name in TABLE_NAMES
        ],
        texts=expand(
            f"{ROOT}/tables/{{name}}.{{kind}}",
            name=TABLE_NAMES,
            kind=["md", "tex"],
        ),
    log:
        f"{ROOT}/logs/tables.log",
    conda:
        "../../environment.yml"
    params:
        study=STUDY_FILE,
        goodput=dag.goodput(),
        code=lambda _: stage_digest("tables") + dag.damage.remade("tables/*"),
    message:
        "Compiling the tables"
    shell:
        "python -m specrig tables --study {params.study:q} 2>&1 | tee {log:q} >&2"


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
        code=lambda _: stage_digest("quality") + dag.damage.remade("tables/quality.*"),
    message:
        "Scoring the outputs"
    shell:
        "python -m specrig quality --study {params.study:q} 2>&1 | tee {log:q} >&2"


rule figures:
    input:
        records=MEASURED,
        loaded=UNDER_LOAD,
        audits=AUDITS,
        reported=REPORTED,
        cells=f"{ROOT}/tables/cells.csv",
        quality=f"{ROOT}/tables/quality.csv",
        curves=CURVES,
    output:
        shown=[
            report(
                f"{ROOT}/figures/{name}.svg",
                caption=f"../report/figure-{name}.rst",
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
        goodput=dag.goodput(),
        learning_curves=dag.learning_curves(),
        code=lambda _: stage_digest("figures")
        + dag.damage.remade("figures/*", "figures/*/*"),
    message:
        "Drawing the figures"
    shell:
        "python -m specrig figures --study {params.study:q} 2>&1 | tee {log:q} >&2"
