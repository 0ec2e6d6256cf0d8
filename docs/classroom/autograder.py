"""autograder.py for Classroom 50: judges regard-learn/ of a learner and writes result.json, a test per exercise.

Put it at CLASSROOM/autograders/ASSIGNMENT/autograder.py of the configuration repository. EXERCISES limits an assignment to
some exercises. The runner of Classroom 50 gives the identity of a submission by variables; without them it is `local`, so
that the script can be tried anywhere: `python autograder.py [FOLDER]`.
"""

import datetime
import json
import os
import pathlib
import subprocess
import sys

EXERCISES = []  # for example ["1", "2", "3"]; empty: all
POINTS = 1
# The interpreter that has NumPy and regard; `regard` of the path where it has none.
COMMAND = [sys.executable, "-m", "regard"]


def judged(folder):
    """The records of `regard learn check --json`."""
    words = COMMAND + ["learn", "check", *(EXERCISES or ["--all"]), "--dir", folder, "--json", "--python", sys.executable]
    ran = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    if ran.returncode not in (0, 1):  # 1 says that something did not pass; more is a failure of the grader.
        sys.exit(ran.returncode)
    return json.loads(ran.stdout)


def reason(record):
    """What is wrong: the diagnosis, else the message, else the facts."""
    told = record["diagnosis"]
    if told:
        return "; and ".join(f"{one['id']}: {one['text']}" for one in [told, *told["also"]])
    return record["message"] or "; ".join(record["facts"])


def result(records):
    """The payload `classroom50/result/v1`."""
    known = {name: os.environ.get(name) or "local" for name in ("CLASSROOM", "ASSIGNMENT", "USERNAME", "COMMIT_URL", "RELEASE_URL")}
    tests = []
    for record in records:
        passed = record["status"] == "pass"
        name = f"{record['number']:02} {record['name']}"
        tests.append({"test-name": name, "passed": passed, "score": POINTS * passed, "max-score": POINTS, "message": reason(record)})
    return {
        "schema": "classroom50/result/v1",
        "classroom": known["CLASSROOM"],
        "assignment": known["ASSIGNMENT"],
        "assignment_type": "group" if os.environ.get("MODE") == "group" else "individual",
        "owner": known["USERNAME"],
        "submission": os.environ.get("SUBMISSION_TAG") or "submit/local",
        "commit": known["COMMIT_URL"],
        "release": known["RELEASE_URL"],
        "review": os.environ.get("REVIEW_URL") or known["COMMIT_URL"],
        "datetime": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "score": sum(test["score"] for test in tests),
        "max-score": sum(test["max-score"] for test in tests),
        "tests": tests,
    }


def body(payload):
    """The text of the release."""
    lines = [f"### {payload['score']} of {payload['max-score']} points", "", "| exercise | | why |", "|---|---|---|"]
    for test in payload["tests"]:
        why = " ".join(test["message"].split()).replace("|", "\\|")
        lines.append(f"| {test['test-name']} | {'pass' if test['passed'] else 'open'} | {why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    payload = result(judged(sys.argv[1] if len(sys.argv) > 1 else "."))
    pathlib.Path("result.json").write_text(json.dumps(payload, indent=2) + "\n", encoding="utf-8")
    pathlib.Path("release-body.md").write_text(body(payload), encoding="utf-8")
    print(f"{payload['score']} of {payload['max-score']} points")
