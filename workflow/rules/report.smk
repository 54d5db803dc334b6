# Writes the report as one self-contained page and as PDF, and the folder for papers.


rule report:
    input:
        records=MEASURED,
        audits=AUDITS,
        tables=TABLE_FILES,
        figures=FIGURE_FILES,
        curves=CURVES,
    output:
        page=report(
            REPORT,
            caption="../report/report.rst",
            category="Report",
            labels={"report": STUDY.study},
        ),
        pdf=report(
            f"{REPORTS}/report.pdf",
            caption="../report/report.rst",
            category="Report",
            labels={"report": f"{STUDY.study}, PDF"},
        ),
        paper=f"{REPORTS}/paper/main.tex",
    log:
        f"{ROOT}/logs/report.log",
    conda:
        "../../environment.yml"
    params:
        study=STUDY_FILE,
        settings=digest(STUDY.model_dump(mode="json")),
        code=stage_digest("report"),
    message:
        "Writing the report"
    shell:
        "python -m specrig report --study {params.study} 2>&1 | tee {log} >&2"
