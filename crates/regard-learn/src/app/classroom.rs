//! Verdicts for classrooms: JUnit XML, `result.json` of Classroom 50, the most frequent mistakes of a class.

use super::record::Record;
use crate::judge::Status;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Mistakes that are listed, at most, and folders that are named with each.
const LISTED: usize = 12;
const NAMED: usize = 3;

impl Record {
    /// What is wrong, in one line: the diagnosis, else the message, else the facts.
    pub(super) fn reason(&self) -> String {
        let word = |json: &Json, name: &str| json[name].as_str().unwrap_or_default().to_owned();
        if self.json["diagnosis"].is_object() {
            let diagnosis = &self.json["diagnosis"];
            let others = diagnosis["also"].as_array().into_iter().flatten();
            let all: Vec<String> =
                std::iter::once(diagnosis).chain(others).map(|one| format!("{}: {}", word(one, "id"), word(one, "text"))).collect();
            return all.join("; and ");
        }
        let message = word(&self.json, "message");
        if message.is_empty() { self.facts().join("; ") } else { message }
    }

    pub(super) fn facts(&self) -> Vec<&str> {
        self.json["facts"].as_array().into_iter().flatten().filter_map(Json::as_str).collect()
    }

    fn title(&self) -> String {
        format!("{:02} {}", self.number, self.name)
    }

    fn whole(&self, name: &str) -> u64 {
        self.json[name].as_u64().unwrap_or(0)
    }
}

/// A text within XML.
fn escaped(text: &str) -> String {
    let printable = text.chars().filter(|c| !c.is_control() || *c == '\n');
    printable.collect::<String>().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Records by folder, in the order of the folders.
fn by_folder(records: &[Record]) -> Vec<(&str, Vec<&Record>)> {
    let mut folders: Vec<(&str, Vec<&Record>)> = Vec::new();
    for record in records {
        match folders.iter_mut().find(|(dir, _)| *dir == record.dir) {
            Some((_, own)) => own.push(record),
            None => folders.push((&record.dir, vec![record])),
        }
    }
    folders
}

/// JUnit XML: a suite per folder, a test case per exercise. What is not begun is skipped.
pub fn junit(records: &[Record]) -> String {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for (dir, own) in by_folder(records) {
        let count = |of: &[Status]| own.iter().filter(|one| of.contains(&one.status)).count();
        let seconds = |one: &Record| one.whole("millis") as f64 / 1000.0;
        out.push_str(&format!(
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{:.3}\">\n",
            escaped(dir),
            own.len(),
            count(&[Status::Fail]),
            count(&[Status::Error, Status::Timeout]),
            count(&[Status::Todo]),
            own.iter().map(|one| seconds(one)).sum::<f64>()
        ));
        for one in &own {
            let id = one.json["diagnosis"]["id"].as_str().unwrap_or_default();
            let reason = escaped(&one.reason());
            let inner = match one.status {
                Status::Pass => String::new(),
                Status::Fail => format!("<failure type=\"{}\" message=\"{reason}\"/>", escaped(id)),
                Status::Error => format!("<error type=\"error\" message=\"{reason}\"/>"),
                Status::Timeout => format!("<error type=\"timeout\" message=\"{reason}\"/>"),
                Status::Todo => "<skipped message=\"not begun\"/>".to_owned(),
            };
            out.push_str(&format!(
                "    <testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\">{inner}</testcase>\n",
                escaped(dir),
                escaped(&one.title()),
                seconds(one)
            ));
        }
        out.push_str("  </testsuite>\n");
    }
    out + "</testsuites>\n"
}

/// `result.json` as Classroom 50 reads it. Its runner gives the identity of the submission by variables; without them it is `local`.
pub fn result(records: &[Record]) -> Json {
    let named = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let known = |name: &str| named(name).unwrap_or_else(|| "local".to_owned());
    let total = |name: &str| records.iter().map(|one| one.whole(name)).sum::<u64>();
    let tests: Vec<Json> = records
        .iter()
        .map(|one| {
            json!({
                "test-name": one.title(), "passed": one.status == Status::Pass, "score": one.whole("points"),
                "max-score": one.whole("max_points"), "message": one.reason(),
            })
        })
        .collect();
    json!({
        "schema": "classroom50/result/v1",
        "classroom": known("CLASSROOM"),
        "assignment": known("ASSIGNMENT"),
        "assignment_type": named("MODE").filter(|mode| mode == "group").unwrap_or_else(|| "individual".to_owned()),
        "owner": known("USERNAME"),
        "submission": named("SUBMISSION_TAG").unwrap_or_else(|| "submit/local".to_owned()),
        "commit": known("COMMIT_URL"),
        "release": known("RELEASE_URL"),
        "review": named("REVIEW_URL").unwrap_or_else(|| known("COMMIT_URL")),
        "datetime": utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())),
        "score": total("points"),
        "max-score": total("max_points"),
        "tests": tests,
    })
}

/// Seconds since 1970 as `YYYY-MM-DDTHH:MM:SSZ`.
fn utc(seconds: u64) -> String {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year:04}-{month:02}-{:02}T{:02}:{:02}:{:02}Z", days + 1, rest / 3600, rest / 60 % 60, rest % 60)
}

/// The mistakes that most folders have, with the names of some.
pub fn frequent(records: &[Record]) -> Vec<String> {
    let mut all: BTreeMap<(usize, String), (String, Vec<&str>)> = BTreeMap::new();
    for record in records.iter().filter(|record| record.json["diagnosis"].is_object()) {
        let diagnosis = &record.json["diagnosis"];
        for one in std::iter::once(diagnosis).chain(diagnosis["also"].as_array().into_iter().flatten()) {
            let word = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
            let entry = all.entry((record.number, word("id"))).or_insert_with(|| (word("text"), Vec::new()));
            if !entry.1.contains(&record.dir.as_str()) {
                entry.1.push(&record.dir);
            }
        }
    }
    if all.is_empty() {
        return Vec::new();
    }
    let mut ranked: Vec<_> = all.into_iter().collect();
    ranked.sort_by_key(|(_, (_, dirs))| std::cmp::Reverse(dirs.len()));
    let folders = by_folder(records).len();
    let mut lines = vec![String::new(), "the most frequent mistakes:".to_owned()];
    for ((number, id), (text, dirs)) in ranked.iter().take(LISTED) {
        let more = dirs.len().saturating_sub(NAMED);
        let others = if more > 0 { format!(" and {more} more") } else { String::new() };
        let named = dirs[..dirs.len().min(NAMED)].join(", ");
        lines.push(format!("  {} of {folders}  {number:02} {id}: {text} ({named}{others})", dirs.len()));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(dir: &str, number: usize, id: &str) -> Record {
        let json = json!({"diagnosis": {"id": id, "text": "a < b", "also": []}, "facts": [], "millis": 1500, "points": 0, "max_points": 2});
        Record { dir: dir.to_owned(), number, name: "softmax", status: Status::Fail, json }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(utc(1_793_577_600), "2026-11-02T00:00:00Z");
    }

    #[test]
    fn junit_has_a_suite_per_folder_and_escapes_what_it_says() {
        let text = junit(&[failed("ann", 2, "columns"), failed("b&n", 2, "no-max")]);
        assert_eq!(text.matches("<testsuite ").count(), 2);
        assert!(text.contains("name=\"b&amp;n\" tests=\"1\" failures=\"1\" errors=\"0\" skipped=\"0\" time=\"1.500\""), "{text}");
        assert!(text.contains("<failure type=\"columns\" message=\"columns: a &lt; b\"/>"), "{text}");
    }

    #[test]
    fn the_most_frequent_mistake_comes_first() {
        let all = [failed("ann", 2, "no-max"), failed("ben", 2, "columns"), failed("eva", 2, "columns")];
        let lines = frequent(&all);
        assert_eq!(lines[2], "  2 of 3  02 columns: a < b (ben, eva)");
        assert!(frequent(&[]).is_empty());
    }

    #[test]
    fn result_json_adds_up_points() {
        let all = [failed("ann", 2, "columns"), failed("ann", 3, "columns")];
        let json = result(&all);
        assert_eq!((json["score"].as_u64(), json["max-score"].as_u64()), (Some(0), Some(4)));
        assert_eq!(json["tests"][0]["test-name"], "02 softmax");
        assert!(json["submission"].as_str().is_some_and(|tag| tag.starts_with("submit/")));
    }
}
