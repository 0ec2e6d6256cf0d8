//! Verdicts for programs and for a teacher's table: JSON, CSV, a table of a class.

use crate::exercise::{Kind, Param};
use crate::judge::{Failure, Seen, Status, Verdict};
use crate::value::Value;
use serde_json::{Value as Json, json};
use std::path::Path;

/// One exercise of one folder.
pub struct Record {
    /// The folder, or the file.
    pub dir: String,
    /// The exercise's number and name.
    pub number: usize,
    /// Its name.
    pub name: &'static str,
    /// How it stands.
    pub status: Status,
    /// The same for programs.
    pub json: Json,
}

/// A verdict with what the folder knows; `points` for a pass.
pub fn record(dir: &Path, verdict: &Verdict, hints: usize, points: u64) -> Record {
    let diagnosis = verdict.diagnosis.as_ref().map(|d| {
        let one = |m: &crate::exercise::Mistake| {
            let entry = crate::kernels::catalogue::of_exercise(verdict.exercise.name, m.id);
            json!({"id": m.id, "text": m.text, "kernel": entry.map(|e| e.id), "formula": entry.map(|e| e.formula),
                "public": entry.map(|e| e.seen).filter(|seen| !seen.is_empty())})
        };
        let mut json = one(&d.mistakes[0]);
        json["explains"] = json!(d.explains);
        json["also"] = d.mistakes[1..].iter().map(one).collect();
        json
    });
    let json = json!({
        "dir": dir.display().to_string(),
        "number": verdict.exercise.number,
        "name": verdict.exercise.name,
        "lang": verdict.lang.name(),
        "status": verdict.status,
        "cases": verdict.cases,
        "failed": verdict.failed,
        "diagnosis": diagnosis,
        "facts": verdict.facts,
        "message": verdict.message,
        "smallest": verdict.smallest.as_ref().map(|seen| smallest(verdict, seen)),
        "hints": hints,
        "millis": verdict.millis as u64,
        "points": if verdict.status == Status::Pass { points } else { 0 },
        "max_points": points,
    });
    Record { dir: dir.display().to_string(), number: verdict.exercise.number, name: verdict.exercise.name, status: verdict.status, json }
}

/// JSON has no NaN: what is not finite is a word.
fn array(value: &Value<f64>) -> Json {
    let cell = |x: &f64| if x.is_finite() { json!(x) } else { json!(x.to_string()) };
    json!({"shape": value.shape, "data": value.data.iter().map(cell).collect::<Vec<Json>>()})
}

fn smallest(verdict: &Verdict, seen: &Seen) -> Json {
    let exercise = verdict.exercise;
    let dims: serde_json::Map<String, Json> =
        exercise.dims.iter().zip(&seen.case.call.dims).map(|(name, size)| ((*name).to_owned(), json!(size))).collect();
    let input = |param: &Param, value: &Value<f64>| match param.kind {
        Kind::File => json!({"bytes": value.data.len()}),
        _ => array(value),
    };
    let inputs: serde_json::Map<String, Json> =
        exercise.inputs().iter().zip(&seen.case.call.args).map(|(param, value)| (param.name.to_owned(), input(param, value))).collect();
    let mut json = json!({"label": seen.case.label, "dims": dims, "inputs": inputs});
    if let (Some(Failure::Numbers { result, .. }), Ok(got)) = (&seen.failure, &seen.reply) {
        json["result"] = json!(exercise.judged(*result));
        json["expected"] = array(&seen.expected.values[*result]);
        json["yours"] = array(&got[*result]);
    }
    json
}

/// All records as JSON.
pub fn to_json(records: &[Record]) -> String {
    let all: Vec<&Json> = records.iter().map(|r| &r.json).collect();
    serde_json::to_string_pretty(&all).unwrap_or_default()
}

/// All records as CSV.
pub fn to_csv(records: &[Record]) -> String {
    let quoted = |text: &str| if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() };
    let mut lines = vec!["dir,number,name,lang,status,cases,failed,diagnosis,hints,millis,points,max_points,facts".to_owned()];
    for record in records {
        let json = &record.json;
        let word = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
        let id = json["diagnosis"]["id"].as_str().unwrap_or_default();
        let cells = [
            record.dir.clone(),
            record.number.to_string(),
            record.name.to_owned(),
            word("lang"),
            word("status"),
            json["cases"].to_string(),
            json["failed"].to_string(),
            id.to_owned(),
            json["hints"].to_string(),
            json["millis"].to_string(),
            json["points"].to_string(),
            json["max_points"].to_string(),
            (if record.facts().is_empty() { record.reason() } else { record.facts().join("; ") }).replace('\n', " "),
        ];
        lines.push(cells.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(","));
    }
    lines.join("\n")
}

/// A line per folder, a column per exercise.
pub fn to_table(records: &[Record]) -> Vec<String> {
    let mut dirs: Vec<&str> = records.iter().map(|r| r.dir.as_str()).collect();
    dirs.dedup();
    let mut numbers: Vec<usize> = records.iter().map(|r| r.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let width = dirs.iter().map(|d| d.len()).max().unwrap_or(0).max(6);
    let head: String = numbers.iter().map(|n| format!(" {n:02}")).collect();
    let mut lines = vec![format!("{:width$} {head}  passed", "folder")];
    for dir in dirs {
        let own: Vec<&Record> = records.iter().filter(|r| r.dir == dir).collect();
        let cell = |n: &usize| own.iter().find(|r| r.number == *n).map_or("  ?", |r| sign(r.status));
        let cells: String = numbers.iter().map(cell).collect();
        let passed = own.iter().filter(|r| r.status == Status::Pass).count();
        lines.push(format!("{dir:width$} {cells}  {passed} of {}", numbers.len()));
    }
    lines.push("+ pass   x fail   ! error   t timeout   . todo".to_owned());
    lines
}

fn sign(status: Status) -> &'static str {
    match status {
        Status::Pass => "  +",
        Status::Fail => "  x",
        Status::Error => "  !",
        Status::Timeout => "  t",
        Status::Todo => "  .",
    }
}
