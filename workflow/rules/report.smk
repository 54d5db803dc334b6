# The report: one self-contained file.


rule report:
    input:
        study=ancient(f"{ROOT}/study.json"),
        indexes=INDEXES,
        tables=TABLES,
        figures=FIGURES,
        curves=CURVES,
    output:
        report(
            REPORT,
            caption="../report/report.rst",
            category="Report",
            labels={"report": STUDY.study},
        ),
    log:
        f"{ROOT}/logs/report.log",
    conda:
        "../../environment.yml"
    params:
        study=digest(STUDY.model_dump(mode="json")),
        code=stage_digest("report"),
    message:
        "Writing the report"
    shell:
        "python -m specrig report --study {input.study} 2>&1 | tee {log} >&2"
