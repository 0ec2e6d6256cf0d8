//! The page: self-contained, escaped, complete.

use base64::Engine as _;
use regard_plot::figure::{Axis, Figure, HeatPlot, LinePlot, Series};
use regard_plot::page::{Claim, Exercise, Lead, Page, Section, Shown, Topic, Verdict};
use regard_plot::{Column, Table, Value};

const NASTY: &str = "<script>alert('x')</script>\"><img src=http://e/>&";

fn figure(name: &str, text: &str) -> Figure {
    let plot = LinePlot::new(text, Axis::linear(text), Axis::linear(text)).series(Series::new(text, &[1.0, 2.0], &[3.0, 4.0]));
    Figure::new(name, text).panel(plot.clone()).panel(plot).caption(text)
}

fn page(text: &str) -> Page {
    let big = HeatPlot::new("", 100, 100, (0..10_000).map(f64::from).collect()).unwrap();
    let table = Table {
        name: format!("t/../{text}"),
        caption: text.to_owned(),
        columns: vec![
            Column { name: "d_k".to_owned(), title: "d_{k}".to_owned() },
            Column { name: "mode".to_owned(), title: text.to_owned() },
            Column { name: "h".to_owned(), title: String::new() },
        ],
        rows: vec![
            vec![Value::Integer(4), Value::Text(text.to_owned()), Value::Number(0.123_456_789)],
            vec![Value::Integer(16), Value::Flag(true), Value::Missing],
            vec![Value::Integer(64), Value::Text("a,b\nc".to_owned()), Value::Number(f64::NAN)],
        ],
        origin: vec![("seed".to_owned(), "4\n2".to_owned())],
    };
    Page {
        title: text.to_owned(),
        subtitle: text.to_owned(),
        lead: Lead {
            question: text.to_owned(),
            formula: text.to_owned(),
            answer: vec![text.to_owned(), "Because d_{k}.".to_owned()],
            figure: Some(figure("answer", text)),
            exercise: Exercise { question: text.to_owned(), answer: text.to_owned() },
        },
        core: vec![Topic { id: "core".to_owned(), title: text.to_owned(), text: vec![text.to_owned()], ..Topic::default() }],
        documents: vec![(text.to_owned(), text.to_owned()), ("short".to_owned(), "a whole title".to_owned())],
        methods: vec![[text.to_owned(), text.to_owned(), text.to_owned()]],
        sections: vec![
            Section {
                id: "sweep".to_owned(),
                title: text.to_owned(),
                intro: text.to_owned(),
                claims: vec![Claim {
                    document: text.to_owned(),
                    section: "Results".to_owned(),
                    text: text.to_owned(),
                    verdict: Verdict::LuckyDraw,
                    because: text.to_owned(),
                    edge: text.to_owned(),
                }],
                figures: vec![figure("a", text), Figure::new("b", text).panel(big)],
                tables: vec![Shown { table, columns: vec!["d_k".to_owned(), "h".to_owned(), "mode".to_owned()] }],
                notes: vec![text.to_owned()],
                command: format!("regard sweep {text}"),
            },
            Section { id: "Robust ness!".to_owned(), title: "Second".to_owned(), ..Section::default() },
        ],
        origin: vec![("command".to_owned(), text.to_owned())],
    }
}

/// The markup outside script and style, as XML (void elements closed).
fn parse(html: &str) -> String {
    let mut out = html.replace("<!DOCTYPE html>", "");
    for (open, close) in [("<script>", "</script>"), ("<style>", "</style>")] {
        let (from, to) = (out.find(open).unwrap(), out.find(close).unwrap());
        out.replace_range(from..to + close.len(), "");
    }
    for void in ["<meta ", "<link "] {
        let mut at = 0;
        while let Some(found) = out[at..].find(void) {
            let end = at + found + out[at + found..].find('>').unwrap();
            out.insert(end, '/');
            at = end;
        }
    }
    out.replace(" open>", " open=\"\">").replace(" hidden>", " hidden=\"\">")
}

#[test]
fn the_markup_is_well_formed_and_outside_text_is_escaped() {
    for text in ["plain", NASTY] {
        let html = page(text).html().unwrap();
        let xml = parse(&html);
        let document = roxmltree::Document::parse(&xml).unwrap_or_else(|e| panic!("{e}\n{xml}"));
        assert_eq!(document.descendants().filter(|n| n.has_tag_name("script")).count(), 0);
        assert_eq!(document.descendants().filter(|n| n.has_tag_name("img")).count(), 0);
        assert_eq!(html.matches("<script").count(), 1, "only our own");
        let mut ids: Vec<&str> = document.descendants().filter_map(|n| n.attribute("id")).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "ids are unique");
    }
}

#[test]
fn a_number_and_its_interval_stand_in_one_cell() {
    let mut table = Table::new("t", "about", &[("n", "n"), ("mean", "mean"), ("mean_low", "from"), ("mean_high", "to")]);
    table.push(vec![Value::Integer(3), Value::Number(7.132_6), Value::Number(7.071_1), Value::Number(7.194_1)]);
    let section = Section { id: "s".to_owned(), tables: vec![table.into()], ..Section::default() };
    let html = Page { sections: vec![section], ..Page::default() }.html().unwrap();
    assert!(
        html.contains("7.13\u{a0}\u{b1}\u{a0}0.06") && !html.contains("<button type=\"button\">from"),
        "the ends have no columns of their own"
    );
}

#[test]
fn claims_are_counted_by_verdict() {
    let claim = |verdict| Claim {
        document: "sheet".to_owned(),
        section: String::new(),
        text: "so".to_owned(),
        verdict,
        because: "because".to_owned(),
        edge: String::new(),
    };
    let claims = vec![claim(Verdict::Holds), claim(Verdict::Holds), claim(Verdict::Undecided)];
    let section = Section { id: "s".to_owned(), claims, ..Section::default() };
    let html = Page { sections: vec![section], ..Page::default() }.html().unwrap();
    assert!(html.contains("flex-grow:2") && html.contains("data-verdict=\"undecided\"") && !html.contains("illustrative</div>"));
}

#[test]
fn nothing_is_requested_from_anywhere() {
    let html = page(NASTY).html().unwrap();
    let xml = parse(&html);
    let document = roxmltree::Document::parse(&xml).unwrap();
    for node in document.descendants() {
        for attribute in node.attributes() {
            if ["href", "src", "srcset", "action", "poster", "data"].contains(&attribute.name()) {
                let value = attribute.value();
                assert!(value.starts_with('#') || value.starts_with("data:"), "{} asks for {value}", node.tag_name().name());
            }
            assert!(!attribute.name().starts_with("on"), "no handlers in attributes");
        }
    }
    let style = &html[html.find("<style>").unwrap()..html.find("</style>").unwrap()];
    let script = &html[html.find("<script>").unwrap()..html.find("</script>").unwrap()];
    assert!(!style.contains("url(") && !style.contains("@import"));
    assert!(!script.contains("http") && !script.contains("fetch(") && !script.contains("XMLHttpRequest") && !script.contains("import"));
    assert!(html.contains("default-src 'none'"));
}

#[test]
fn anchors_of_the_contents_exist() {
    let xml = parse(&page("plain").html().unwrap());
    let document = roxmltree::Document::parse(&xml).unwrap();
    let links: Vec<&str> = document.descendants().filter_map(|n| n.attribute("href")).filter_map(|h| h.strip_prefix('#')).collect();
    assert!(links.contains(&"sweep") && links.contains(&"robust-ness-"), "{links:?}");
    for link in links {
        assert!(document.descendants().any(|n| n.attribute("id") == Some(link)), "{link}");
    }
}

#[test]
fn figures_are_reachable_and_described() {
    let xml = parse(&page("plain").html().unwrap());
    let document = roxmltree::Document::parse(&xml).unwrap();
    let figures: Vec<_> = document.descendants().filter(|n| n.has_tag_name("figure")).collect();
    assert_eq!(figures.len(), 3);
    for figure in figures {
        assert!(figure.descendants().any(|n| n.has_tag_name("button") && n.attribute("aria-label").is_some()));
        assert!(figure.descendants().any(|n| n.attribute("tabindex") == Some("0")));
        for svg in figure.descendants().filter(|n| n.has_tag_name("svg")) {
            assert!(svg.attribute("role") == Some("img") && svg.attribute("aria-label").is_some_and(|a| a.len() > 10));
        }
    }
    // Two panels are two drawings, so that they can stand below each other.
    let answer = document.descendants().find(|n| n.attribute("id") == Some("answer-figure")).unwrap();
    assert_eq!(answer.descendants().filter(|n| n.has_tag_name("svg")).count(), 2);
    assert!(xml.contains("<dialog id=\"zoom\""));
}

#[test]
fn claims_verdicts_commands_and_origin_are_there() {
    let html = page("plain").html().unwrap();
    for expected in [
        "lucky draw</span>",
        "<code>regard sweep plain</code>",
        "Because d<sub>k</sub>.",
        "<dt>command</dt><dd>plain</dd>",
        "d<sub>k</sub></button>",
    ] {
        assert!(html.contains(expected), "{expected}");
    }
    assert!(!html.contains("d_{k}"));
}

#[test]
fn tables_align_numbers_and_go_home_as_csv() {
    let html = page("plain").html().unwrap();
    assert!(html.contains("<td class=\"n\" data-v=\"0.123456789\">0.1235</td>"));
    assert!(html.contains("<td class=\"n\">\u{2013}</td>") && html.contains("<td class=\"n\" data-v=\"NaN\">NaN</td>"));
    let from = html.find("data:text/csv;charset=utf-8;base64,").unwrap();
    let data = html[from..].split(['"', ',']).nth(1).unwrap();
    let csv = base64::engine::general_purpose::STANDARD.decode(data).unwrap();
    // The same bytes that a run writes, so that `report --from` reads them.
    let table = &page("plain").sections[0].tables[0].table;
    assert_eq!(String::from_utf8(csv.clone()), String::from_utf8(table.to_csv()));
    assert_eq!(Table::from_csv("t", &csv).unwrap().caption, "plain");
    assert!(html.contains("download=\"t____plain.csv\""));
}

#[test]
fn palettes_are_there_for_pictures_only() {
    let html = page("plain").html().unwrap();
    assert!(html.contains("const COLOURS={\"Viridis\":\"440154"));
    let mut without = page("plain");
    without.sections[0].figures.truncate(1);
    assert!(without.html().unwrap().contains("const COLOURS={};"));
}

#[test]
fn the_same_page_has_the_same_bytes() {
    assert_eq!(page(NASTY).html().unwrap(), page(NASTY).html().unwrap());
}

#[test]
fn code_and_unclosed_backticks_are_set() {
    let mut p = page("plain");
    p.lead.answer = vec!["run `a<b` and d_{k} ` alone".to_owned()];
    let html = p.html().unwrap();
    assert!(html.contains("run <code>a&lt;b</code> and d<sub>k</sub> ` alone"));
}

#[test]
fn a_handout_has_questions_without_answers_and_its_second_file_has_them() {
    let topic = Topic {
        id: "core-one".to_owned(),
        title: "A topic".to_owned(),
        text: vec!["A paragraph.".to_owned()],
        tables: vec![Table::new("t", "A table", &[("a", "a")]).into()],
        figure: None,
        exercise: Exercise { question: "How many?".to_owned(), answer: "Forty-two.".to_owned() },
    };
    let page = Page { title: "Title".to_owned(), core: vec![topic], ..Page::default() };
    let (room, open, whole) = (page.handout(false).unwrap(), page.handout(true).unwrap(), page.html().unwrap());
    for html in [&room, &open, &whole] {
        assert!(html.contains("How many?") && html.contains("A paragraph.") && html.contains("<caption>A table</caption>"));
        assert_eq!(html.matches("id=\"core-one\"").count(), 1);
    }
    assert!(!room.contains("Forty-two.") && room.contains("class=\"room\""));
    assert!(open.contains("Forty-two.") && !open.contains("<details"));
    assert!(whole.contains("<details class=\"answered\"><summary>Answer</summary>"), "the answer is folded on the page");
    assert!(!room.contains("<script") && !open.contains("<script"));
}
