//! A report as text, JSON, JUnit XML and Markdown.

use super::Report;
use super::catalogue::{Occurrence, filled};
use super::diagnose::{Failure, Found, Seen};
use super::problem::{Align, Problem, RESULTS};
use crate::show::picture::{coloured, digits, fits, three};
use crate::show::{Look, index, numbers, short};
use crate::value::Value;
use serde_json::{Value as Json, json as object};

/// Words for what a problem uses.
fn features(p: &Problem) -> Vec<&'static str> {
    let mut all = Vec::new();
    let mut add = |holds: bool, word: &'static str| {
        if holds {
            all.push(word);
        }
    };
    add(p.causal, "causal");
    add(p.window.is_some(), "a window");
    add(p.softcap.is_some(), "a softcap");
    add(p.mask.is_some(), "a mask");
    add(p.bias.is_some(), "a bias");
    add(p.alibi.is_some(), "ALiBi");
    add(p.sinks.is_some(), "sinks");
    add(p.lengths.is_some(), "key lengths");
    add(p.offset.is_some(), "a position of the queries");
    add(p.scale.is_some(), "a scale");
    add(p.dropout > 0.0, "dropout");
    add(p.heads[0] != p.heads[1], "grouped heads");
    add(p.dims[0] != p.dims[1], "another value dimension");
    let s = p.segments[0];
    add(!p.packed && s.n != s.m, "unequal numbers of queries and keys");
    add(s.m >= 64, "64 keys or more");
    add(s.n >= 64, "64 queries or more");
    add(p.hidden_nan, "a hidden NaN");
    all
}

/// What is true of the failed cases.
pub(super) fn facts(seen: &[Seen], unnamed: bool) -> Vec<String> {
    let wrong: Vec<&Seen> = seen.iter().filter(|one| one.wrong()).collect();
    let right: Vec<&Seen> = seen.iter().filter(|one| one.got.is_ok() && !one.wrong()).collect();
    let mut facts = Vec::new();
    for one in wrong.iter().take(3) {
        match &one.got {
            Err(Failure::Raised(text) | Failure::Shape(text)) => facts.push(format!("in the case \"{}\": {text}", one.problem.label)),
            Err(Failure::Gone(text)) => facts.push(format!("in the case \"{}\" there is no answer: {text}", one.problem.label)),
            _ => {}
        }
    }
    if !unnamed {
        return facts;
    }
    let has = |one: &Seen, word: &str| features(&one.problem).contains(&word);
    let words: std::collections::BTreeSet<&str> = wrong.iter().flat_map(|one| features(&one.problem)).collect();
    for word in words {
        if wrong.iter().all(|one| has(one, word)) {
            let also = right.iter().filter(|one| has(one, word)).count();
            let rest = if also == 0 { "and no case with it is right".to_owned() } else { format!("{also} cases with it are right") };
            facts.push(format!("every wrong case has {word}; {rest}"));
        }
    }
    let results: std::collections::BTreeSet<&str> = wrong.iter().filter_map(|one| Some(RESULTS[one.mismatch.as_ref()?.result])).collect();
    if !results.is_empty() {
        facts.push(format!("the first wrong result is {}", results.into_iter().collect::<Vec<_>>().join(" or ")));
    }
    if wrong.iter().all(|one| one.problem.hard) && !wrong.is_empty() {
        facts.push("ordinary inputs are right: only rows without keys, NaN, large scores or strides are wrong".to_owned());
    }
    let labels: Vec<String> = wrong.iter().take(6).map(|one| format!("\"{}\"", one.problem.label)).collect();
    let more = if wrong.len() > labels.len() { format!(" and {} more", wrong.len() - labels.len()) } else { String::new() };
    facts.push(format!("wrong: {}{more}", labels.join(", ")));
    facts
}

fn described(one: &Occurrence) -> [String; 3] {
    let entry = one.mistake.entry();
    let only = one.only().map_or_else(String::new, |only| format!("; {only}"));
    [entry.id.to_owned(), filled(entry.text, one.form) + &only, filled(entry.formula, one.form)]
}

fn ids(set: &Found) -> String {
    set.iter().map(|one| one.mistake.entry().id).collect::<Vec<_>>().join(" and ")
}

/// The largest error over that of the naive computation, and its case.
fn worst(report: &Report) -> Option<(f64, &str)> {
    let ratios = report.seen.iter().filter(|one| !one.wrong()).filter_map(|one| Some((one.ratio()?, one.problem.label.as_str())));
    ratios.max_by(|a, b| a.0.total_cmp(&b.0))
}

fn layout_words(layout: &str) -> String {
    let word = |letter| match letter {
        'b' => "batch",
        'h' => "heads",
        's' => "seq",
        'f' => "heads * dim",
        _ => "dim",
    };
    format!("[{}]", layout.chars().map(word).collect::<Vec<_>>().join(", "))
}

fn headline(report: &Report) -> String {
    let answered = report.seen.iter().filter(|one| one.got.is_ok()).count();
    match (report.right, report.limits.is_empty()) {
        (true, true) => format!("right in {answered} cases"),
        (true, false) => format!("right in {} of {answered} cases; the others are limits", answered - report.wrong()),
        (false, _) if answered == 0 => "no case gave a result".to_owned(),
        (false, _) => format!("wrong in {} of {} cases", report.wrong(), report.seen.len() - report.refused().len()),
    }
}

/// The report for a terminal.
pub fn text(report: &Report, look: Look) -> Vec<String> {
    let mut lines = vec![format!("judge {}", report.name)];
    let align = if report.takes.align == Align::TopLeft { "from the top left" } else { "to the bottom right" };
    let causal = if report.takes.has("causal") { format!(", causal {align}") } else { String::new() };
    lines.push(format!(
        "  called as {} with {}, {}, {}{causal}",
        report.style,
        report.framework,
        layout_words(&report.layout),
        report.takes.precision.name()
    ));
    let mut takes: Vec<&str> = report.takes.features.iter().map(String::as_str).filter(|one| !one.contains('+')).collect();
    takes.sort_unstable();
    lines.push(format!("  judged: forward{}{}", if takes.is_empty() { "" } else { ", " }, takes.join(", ")));
    let word = if report.right { look.paint("32;1", "right") } else { look.paint("31;1", "wrong") };
    lines.push(headline(report).replacen(if report.right { "right" } else { "wrong" }, &word, 1));
    if let Some((ratio, label)) = worst(report) {
        let naive = format!("{ratio:.1} times that of the naive {} computation", report.takes.precision.name());
        lines.push(format!("  error of the right cases against f64: at most {naive} (\"{label}\")"));
    }
    mistakes(report, look, &mut lines);
    for one in &report.limits {
        let [id, text, _] = described(one);
        let whose = report.library.as_ref().map_or("allowed".to_owned(), |library| format!("documented limit of {library}"));
        lines.push(format!("  {id} ({whose}): {text}"));
    }
    lines.extend(report.facts.iter().map(|fact| format!("  - {fact}")));
    if let Some(seen) = &report.smallest {
        lines.extend(smallest(seen, look));
    }
    let refused = report.refused();
    if !refused.is_empty() {
        lines.push(format!("  refused {} cases, which are not judged:", refused.len()));
        for (label, words) in refused.iter().take(4) {
            lines.push(format!("  - {label}: {}", words.lines().next().unwrap_or_default().chars().take(100).collect::<String>()));
        }
    }
    lines.extend(report.skipped.iter().map(|one| format!("  left out: {one}")));
    lines
}

fn mistakes(report: &Report, look: Look, lines: &mut Vec<String>) {
    if report.right {
        return;
    }
    for (at, set) in report.found.iter().enumerate() {
        if at > 0 {
            lines.push("  or, which these cases cannot tell apart:".to_owned());
        }
        let told = report.mistakes(set);
        for one in &told {
            let [id, text, formula] = described(one);
            lines.push(format!("  {}: {text}", look.paint("1", &id)));
            lines.push(format!("      {formula}"));
            if !one.mistake.entry().seen.is_empty() {
                lines.push(format!("      a public bug like it: {}", one.mistake.entry().seen));
            }
        }
    }
    if let Some(first) = report.found.first() {
        let what = if first.len() > 1 { "together they explain" } else { "explains" };
        lines.push(format!("  ({what} all {} cases)", report.seen.len() - report.refused().len()));
    } else {
        lines.push("  no known mistake explains every case".to_owned());
    }
}

/// Arrays of a problem with their names.
fn inputs(p: &Problem) -> Vec<(&'static str, Value<f64>)> {
    let [tq, tk] = p.tokens();
    let [h, hk] = p.heads;
    let [d, dv] = p.dims;
    let mut all = Vec::new();
    if let Some(parts) = &p.merge {
        for (side, names) in [["out_a", "lse_a"], ["out_b", "lse_b"]].iter().enumerate() {
            all.push((names[0], Value::new(&[tq, h, dv], parts.out[side].clone())));
            all.push((names[1], Value::new(&[tq, h], parts.lse[side].clone())));
        }
        return all;
    }
    let shape = |rows: usize, heads: usize, width: usize| if heads == 1 { vec![rows, width] } else { vec![rows, heads, width] };
    all.push(("q", Value::new(&shape(tq, h, d), p.q.clone())));
    all.push(("k", Value::new(&shape(tk, hk, d), p.k.clone())));
    all.push(("v", Value::new(&shape(tk, hk, dv), p.v.clone())));
    for (name, plane) in [("mask", &p.mask), ("bias", &p.bias)] {
        if let Some(plane) = plane {
            all.push((name, Value::new(&plane.shape, plane.data.clone())));
        }
    }
    for (name, list) in [("alibi_slopes", &p.alibi), ("sinks", &p.sinks)] {
        if let Some(list) = list {
            all.push((name, Value::new(&[list.len()], list.clone())));
        }
    }
    if let Some(d_out) = &p.d_out {
        all.push(("d_out", Value::new(&shape(tq, h, dv), d_out.clone())));
    }
    all
}

/// Scalar arguments of a problem.
fn arguments(p: &Problem) -> Vec<String> {
    let mut words = Vec::new();
    if p.causal {
        words.push("causal".to_owned());
    }
    if let Some(window) = p.window {
        let side = |size: Option<usize>| size.map_or("all".to_owned(), |size| size.to_string());
        words.push(format!("window {} left, {} right", side(window[0]), side(window[1])));
    }
    for (name, value) in [("scale", p.scale), ("softcap", p.softcap)] {
        if let Some(value) = value {
            words.push(format!("{name} {value}"));
        }
    }
    if let Some(offset) = p.offset {
        words.push(format!("first query at position {offset}"));
    }
    if let Some(lengths) = &p.lengths {
        words.push(format!("key lengths {lengths:?}"));
    }
    if p.packed {
        words.push(format!("sequences of {:?} queries and keys", p.segments.iter().map(|s| (s.n, s.m)).collect::<Vec<_>>()));
    }
    words
}

/// Shape of a result: rows are tokens.
fn shape_of(p: &Problem, result: usize) -> Vec<usize> {
    let [tq, tk] = p.tokens();
    let [h, hk] = p.heads;
    let [d, dv] = p.dims;
    match result {
        0 => vec![tq, h, dv],
        1 => vec![tq, h],
        2 => vec![tq, h, d],
        3 => vec![tk, hk, d],
        4 => vec![tk, hk, dv],
        _ => p.bias.as_ref().map(|bias| bias.shape.to_vec()).unwrap_or_default(),
    }
}

fn smallest(seen: &Seen, look: Look) -> Vec<String> {
    let p = &seen.problem;
    let mut lines = vec![String::new()];
    let words = arguments(p);
    let how = if words.is_empty() { String::new() } else { format!("; {}", words.join(", ")) };
    lines.push(format!("  the smallest case like it (from \"{}\"{how}); rows are tokens:", p.label));
    for (name, value) in inputs(p) {
        lines.extend(numbers(name, &value).into_iter().map(|line| format!("    {line}")));
    }
    let (Some(wrong), Ok(got)) = (&seen.mismatch, &seen.got) else { return lines };
    let shape = shape_of(p, wrong.result);
    let name = RESULTS[wrong.result];
    lines.push(format!(
        "  {name}{:?} is {}; it must be {} (within {:.1e}); {} of {} elements are wrong",
        index(&shape, wrong.at),
        short(wrong.got),
        short(wrong.expected),
        wrong.tolerance,
        wrong.wrong[0],
        wrong.wrong[1]
    ));
    let (Some(want), Some(have)) = (&seen.expected.results.arrays[wrong.result], &got.arrays[wrong.result]) else { return lines };
    let maps = three(&Value::new(&shape, want.clone()), &Value::new(&shape, have.clone()));
    if maps.iter().all(fits) {
        lines.push(format!("  {name}:"));
        lines.extend(if look.colour { coloured(&maps) } else { digits(&maps) });
    }
    lines
}

fn cell(x: f64) -> Json {
    if x.is_finite() { object!(x) } else { object!(x.to_string()) }
}

fn array(value: &Value<f64>) -> Json {
    object!({"shape": value.shape, "data": value.data.iter().map(|x| cell(*x)).collect::<Vec<Json>>()})
}

/// The report for programs.
pub fn json(report: &Report) -> Json {
    let told = |set: &Found| {
        let one = |one: &Occurrence| {
            let [id, text, formula] = described(one);
            object!({"id": id, "text": text, "formula": formula, "only": one.only(), "public": one.mistake.entry().seen})
        };
        set.iter().map(one).collect::<Vec<Json>>()
    };
    let cases = report.seen.iter().map(|one| {
        let (status, message) = match &one.got {
            Err(Failure::Refused(text)) => ("refused", Some(text.clone())),
            Err(Failure::Raised(text) | Failure::Shape(text) | Failure::Gone(text)) => ("error", Some(text.clone())),
            Ok(_) if one.mismatch.is_some() => ("wrong", failure_text(one)),
            Ok(_) => ("right", None),
        };
        object!({"name": one.problem.label, "status": status, "message": message, "ratio": one.ratio().filter(|x| x.is_finite())})
    });
    let smallest = report.smallest.as_ref().map(|seen| {
        let arrays: serde_json::Map<String, Json> =
            inputs(&seen.problem).iter().map(|(name, value)| ((*name).to_owned(), array(value))).collect();
        let wrong = seen.mismatch.as_ref().map(|m| {
            object!({"result": RESULTS[m.result], "index": index(&shape_of(&seen.problem, m.result), m.at), "got": cell(m.got),
                "expected": cell(m.expected), "tolerance": m.tolerance})
        });
        object!({"case": seen.problem.label, "arguments": arguments(&seen.problem), "inputs": arrays, "wrong": wrong})
    });
    let sets: Vec<Vec<Json>> = if report.right { Vec::new() } else { report.found.iter().map(|set| told(&report.mistakes(set))).collect() };
    object!({
        "target": report.name, "style": report.style, "framework": report.framework, "layout": report.layout,
        "dtype": report.takes.precision.name(), "causal": if report.takes.align == Align::TopLeft { "top-left" } else { "bottom-right" },
        "library": report.library, "judged": report.takes.features, "right": report.right, "cases": cases.collect::<Vec<Json>>(),
        "wrong": report.wrong(), "mistakes": sets.first().cloned().unwrap_or_default(), "alternatives": sets.get(1..).unwrap_or_default(),
        "limits": told(&report.limits), "facts": report.facts, "skipped": report.skipped, "smallest": smallest,
        "worst_ratio": worst(report).map(|w| w.0), "millis": report.millis as u64,
    })
}

fn failure_text(one: &Seen) -> Option<String> {
    let m = one.mismatch.as_ref()?;
    let place = index(&shape_of(&one.problem, m.result), m.at);
    Some(format!("{}{place:?} is {}; it must be {} (within {:.1e})", RESULTS[m.result], short(m.got), short(m.expected), m.tolerance))
}

fn escaped(text: &str) -> String {
    let printable = text.chars().filter(|c| !c.is_control() || *c == '\n');
    printable.collect::<String>().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// JUnit XML: a test case per case; limits are skipped cases.
pub fn junit(report: &Report) -> String {
    let named = report.found.first().map(|set| ids(&report.mistakes(set))).unwrap_or_default();
    let mut body = String::new();
    let (mut failures, mut skipped) = (0, 0);
    for one in &report.seen {
        let name = escaped(&one.problem.label);
        let inner = match &one.got {
            Err(Failure::Refused(text)) => {
                skipped += 1;
                format!("<skipped message=\"{}\"/>", escaped(text))
            }
            _ if one.wrong() && report.right => {
                skipped += 1;
                format!("<skipped message=\"limit: {}\"/>", escaped(&ids(&report.limits)))
            }
            Err(Failure::Raised(text) | Failure::Shape(text) | Failure::Gone(text)) => {
                failures += 1;
                format!("<failure message=\"{}\"/>", escaped(text))
            }
            Ok(_) if one.wrong() => {
                failures += 1;
                format!("<failure type=\"{}\" message=\"{}\"/>", escaped(&named), escaped(&failure_text(one).unwrap_or_default()))
            }
            Ok(_) => String::new(),
        };
        body.push_str(&format!("    <testcase classname=\"regard.judge\" name=\"{name}\">{inner}</testcase>\n"));
    }
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  \
         <testsuite name=\"regard judge {}\" tests=\"{}\" failures=\"{failures}\" \
         skipped=\"{skipped}\">\n{body}  </testsuite>\n</testsuites>\n",
        escaped(&report.name),
        report.seen.len()
    )
}

/// A summary for the page of a continuous integration run.
pub fn markdown(report: &Report) -> String {
    let mut out = format!("### `{}`: {}\n\n", report.name, headline(report));
    if let Some((ratio, _)) = worst(report) {
        out.push_str(&format!(
            "Error of the right cases: at most {ratio:.1} times that of the naive {} computation.\n\n",
            report.takes.precision.name()
        ));
    }
    let mut rows: Vec<[String; 3]> = Vec::new();
    if !report.right {
        for set in &report.found {
            rows.extend(report.mistakes(set).iter().map(described));
        }
    }
    rows.extend(report.limits.iter().map(|one| {
        let [id, text, formula] = described(one);
        [format!("{id} (limit)"), text, formula]
    }));
    if !rows.is_empty() {
        out.push_str("| mistake | what | formula |\n|---|---|---|\n");
        for [id, text, formula] in rows {
            out.push_str(&format!("| {id} | {} | `{}` |\n", text.replace('|', "\\|"), formula.replace('|', "\\|")));
        }
        out.push('\n');
    }
    for fact in &report.facts {
        out.push_str(&format!("- {fact}\n"));
    }
    out
}
