# Writes the report as one self-contained page, and beside it, at the same time, as PDF and as a folder for papers.
# The paths that the commands print are left out: the run's end says where the report is.


rule report:
    input:
        records=MEASURED,
        loaded=UNDER_LOAD,
        audits=AUDITS,
        tables=TABLE_FILES,
        figures=FIGURE_FILES,
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
        study=STUDY_FILE,
        settings=digest(STUDY.model_dump(mode="json")),
        code=stage_digest("report"),
    message:
        "Writing {output}"
    shell:
        "python -m specrig stage report --study {params.study:q} 2>&1 >/dev/null | tee {log:q} >&2"


# It draws figures of its own, in the widths of a paper, so it need not wait for those of the page.
rule paper:
    input:
        records=MEASURED,
        loaded=UNDER_LOAD,
        audits=AUDITS,
        tables=TABLE_FILES,
        curves=CURVES,
    output:
        pdf=report(
            PAPER[0],
            caption="../report/report.rst",
            category="Report",
            labels={"report": f"{STUDY.study}, PDF"},
        ),
        paper=PAPER[1],
    log:
        f"{ROOT}/logs/paper.log",
    conda:
        "../../environment.yml"
    params:
        study=STUDY_FILE,
        settings=digest(STUDY.model_dump(mode="json")),
        code=stage_digest("paper"),
    message:
        "Writing the PDF and the folder for papers"
    shell:
        "python -m specrig stage paper --study {params.study:q} 2>&1 >/dev/null | tee {log:q} >&2"
