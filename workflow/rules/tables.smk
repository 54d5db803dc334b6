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
        code=stage_digest("tables"),
    message:
        "Compiling the tables"
    shell:
        "python -m specrig stage tables --study {params.study:q} 2>&1 | tee {log:q} >&2"


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
        "python -m specrig stage quality --study {params.study:q} 2>&1 | tee {log:q} >&2"


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
        code=stage_digest("figures"),
    message:
        "Drawing the figures"
    shell:
        "python -m specrig stage figures --study {params.study:q} 2>&1 | tee {log:q} >&2"
