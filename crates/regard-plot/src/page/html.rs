//! The page's markup. Inserted text is escaped by the templates; drawings are XML that [`Figure`] has escaped.

use super::{Claim, Exercise, Lead, Page, Section, Shown, Topic, Verdict};
use crate::figure::{ColourMap, Figure, FigureError, Level, cell_text, painted_by_variables, plain, runs, variables};
use crate::table::{Table, Value, with_interval};
use base64::Engine as _;
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// No request leaves the page, and nothing but its own style and script is obeyed.
const POLICY: &str = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// Tables of more columns than this are not printed: paper is not that wide.
const WIDE: usize = 8;

/// Tables of more rows than this are folded.
const OPEN_ROWS: usize = 14;

/// The whole page.
pub(super) fn page(page: &Page) -> Result<String, FigureError> {
    let main = main(page)?;
    let script = format!("\"use strict\";const COLOURS={};\n{SCRIPT}", palettes(&main.0));
    let whole = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="color-scheme" content="light dark";
                link rel="icon" href="data:,";
                title { (plain(&page.title)) }
                style { (PreEscaped(style())) }
            }
            body {
                a.skip href="#main" { "Skip to the answer" }
                header.top {
                    div {
                        h1 { (prose(&page.title)) }
                        @if !page.subtitle.is_empty() { p.subtitle { (prose(&page.subtitle)) } }
                    }
                    button type="button" #theme aria-label="Switch between light and dark" { span aria-hidden="true" { "\u{25d0}" } }
                }
                (contents(page))
                (main)
                (origin(&page.origin))
                dialog #zoom aria-label="Enlarged figure" {
                    button type="button" #zoom-close aria-label="Close" { "\u{2715}" }
                    div #zoom-body {}
                }
                div #tip role="status" aria-live="polite" {}
                script { (PreEscaped(script)) }
            }
        }
    };
    Ok(whole.into_string())
}

/// Lead and core alone, for paper.
pub(super) fn handout(page: &Page, answers: bool) -> Result<String, FigureError> {
    let with = if answers { Answers::Open } else { Answers::Room };
    let lead = lead(&page.lead, with)?;
    let core = page.core.iter().map(|topic| self::topic(topic, with)).collect::<Result<Vec<_>, _>>()?;
    let whole = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                link rel="icon" href="data:,";
                title { (plain(&page.title)) @if answers { ": answers" } @else { ": handout" } }
                style { (PreEscaped(style())) }
            }
            body.handout {
                header.top {
                    h1 { (prose(&page.title)) }
                    p.subtitle { @if answers { "Answers" } @else { "Name:" } }
                }
                main { (lead) @for topic in &core { (topic) } }
            }
        }
    };
    Ok(whole.into_string())
}

/// How an exercise shows its answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answers {
    Folded,
    Open,
    /// Lines to write on instead of an answer.
    Room,
}

fn exercise(exercise: &Exercise, answers: Answers) -> Markup {
    if exercise.question.is_empty() {
        return Markup::default();
    }
    html! {
        div.exercise {
            p { span.tag { "Question" } " " (prose(&exercise.question)) }
            @match answers {
                Answers::Folded => { details.answered { summary { "Answer" } p { (prose(&exercise.answer)) } } }
                Answers::Open => { p { span.tag { "Answer" } " " (prose(&exercise.answer)) } }
                Answers::Room => { div.room {} }
            }
        }
    }
}

fn topic(topic: &Topic, answers: Answers) -> Result<Markup, FigureError> {
    let id = anchor(&topic.id);
    let figure = topic.figure.as_ref().map(|figure| self::figure(figure, &format!("{id}-figure"))).transpose()?;
    Ok(html! {
        section.core id=(id) {
            h2 { a.self href=(link(&id)) { (prose(&topic.title)) } }
            @for paragraph in &topic.text { p { (prose(paragraph)) } }
            div.tables { @for shown in &topic.tables { (small_table(shown)) } }
            @if let Some(figure) = figure { (figure) }
            (exercise(&topic.exercise, answers))
        }
    })
}

/// A table that is always open and has no download.
fn small_table(Shown { table, columns }: &Shown) -> Markup {
    let here = seen(table, columns);
    let kinds: Vec<&str> = here.iter().map(|&c| if numeric(table, c) { "n" } else { "t" }).collect();
    html! {
        table.small {
            caption { (prose(&table.caption)) }
            thead { tr { @for (&c, kind) in here.iter().zip(&kinds) {
                @let column = &table.columns[c];
                th scope="col" class=(kind) { (prose(if column.title.is_empty() { &column.name } else { &column.title })) }
            } } }
            tbody { @for row in &table.rows { tr { @for (&c, kind) in here.iter().zip(&kinds) { (cell(table, row, c, kind)) } } } }
        }
    }
}

fn main(page: &Page) -> Result<Markup, FigureError> {
    let lead = lead(&page.lead, Answers::Folded)?;
    let core = page.core.iter().map(|topic| self::topic(topic, Answers::Folded)).collect::<Result<Vec<_>, _>>()?;
    let mut sections = Vec::new();
    let mut first = 1;
    for section in &page.sections {
        sections.push(self::section(section, first)?);
        first += section.claims.len();
    }
    Ok(html! {
        main #main {
            (lead)
            @for topic in &core { (topic) }
            (glance(page))
            @if !page.core.is_empty() && !sections.is_empty() { h2.appendix { "Appendix: every experiment" } }
            (methods(page))
            @for section in &sections { (section) }
        }
    })
}

/// The style sheet, with the colours of figures.
fn style() -> String {
    format!("{STYLE}:root{{{}}}{}", variables(), painted_by_variables())
}

/// The colours of the maps that the page has pictures of, for reading values back.
fn palettes(page: &str) -> String {
    let maps = [ColourMap::Viridis, ColourMap::Cividis, ColourMap::Magma, ColourMap::PurpleOrange];
    let used = maps.into_iter().filter(|m| page.contains(&format!("data-map=\"{m:?}\"")));
    let parts: Vec<String> = used.map(|m| format!("\"{m:?}\":\"{}\"", m.palette_hex())).collect();
    format!("{{{}}}", parts.join(","))
}

/// Text with the small markup: scripts and code.
fn prose(text: &str) -> Markup {
    // A number, its interval and its unit stay on one line.
    let text = &text.replace(" \u{b1} ", "\u{a0}\u{b1}\u{a0}").replace(" %", "\u{a0}%").replace(" x 10^", "\u{a0}\u{d7}\u{a0}10^");
    let ticks = text.matches('`').count();
    html! {
        @for (i, part) in text.split('`').enumerate() {
            // An odd part stands between two backticks, unless the last one was never closed.
            @if i % 2 == 1 && ticks > i {
                code { (part) }
            } @else {
                @if i % 2 == 1 { "`" }
                @for (level, run) in runs(part) {
                    @match level {
                        Level::Line => { (run) }
                        Level::Sub => { sub { (run) } }
                        Level::Super => { sup { (run) } }
                    }
                }
            }
        }
    }
}

/// An anchor: letters, digits and dashes only.
fn anchor(id: &str) -> String {
    let clean: String = id.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    if clean.is_empty() { "section".to_owned() } else { clean }
}

fn link(id: &str) -> String {
    format!("#{}", anchor(id))
}

fn contents(page: &Page) -> Markup {
    html! {
        nav.toc aria-label="Contents" {
            details open {
                summary { "Contents" }
                ol {
                    @if !page.lead.question.is_empty() { li { a href="#answer" { (prose(&page.lead.question)) } } }
                    @for topic in &page.core { li { a href=(link(&topic.id)) { (prose(&topic.title)) } } }
                    @if page.sections.iter().any(|s| !s.claims.is_empty()) { li { a href="#glance" { "Every claim and its verdict" } } }
                    @for section in &page.sections { li { a href=(link(&section.id)) { (prose(&section.title)) } } }
                }
            }
        }
    }
}

fn lead(lead: &Lead, answers: Answers) -> Result<Markup, FigureError> {
    if lead.question.is_empty() && lead.answer.is_empty() && lead.figure.is_none() {
        return Ok(Markup::default());
    }
    let figure = lead.figure.as_ref().map(|figure| self::figure(figure, "answer-figure")).transpose()?;
    Ok(html! {
        section.lead #answer {
            h2 { (prose(&lead.question)) }
            @if !lead.formula.is_empty() { p.formula { (prose(&lead.formula)) } }
            @for sentence in &lead.answer { p.answer { (prose(sentence)) } }
            @if let Some(figure) = figure { (figure) }
            (exercise(&lead.exercise, answers))
        }
    })
}

/// The class of a verdict's colours, and its sign.
fn look(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Holds => ("good", "\u{2713}"),
        Verdict::HoldsInPart => ("part", "\u{25d1}"),
        Verdict::Illustrative => ("note", "\u{223c}"),
        Verdict::OneDraw => ("note", "\u{2680}"),
        Verdict::LuckyDraw => ("part", "\u{2684}"),
        Verdict::WrongAsWorded => ("bad", "\u{2260}"),
        Verdict::Wrong => ("bad", "\u{2715}"),
        Verdict::Undecided => ("none", "?"),
        Verdict::ByReference => ("note", "\u{201d}"),
        Verdict::NotChecked => ("none", "\u{2013}"),
    }
}

fn badge(verdict: Verdict) -> Markup {
    let (class, sign) = look(verdict);
    html! { span.badge.(class) { span aria-hidden="true" { (sign) } " " (verdict.words()) } }
}

/// How many claims have which verdict; those that none has are left out.
fn tally(page: &Page) -> Vec<(Verdict, usize)> {
    let claims = || page.sections.iter().flat_map(|section| &section.claims);
    let count = |verdict: Verdict| (verdict, claims().filter(|claim| claim.verdict == verdict).count());
    Verdict::ALL.into_iter().map(count).filter(|(_, count)| *count > 0).collect()
}

/// The counts as one bar.
fn counts(page: &Page) -> Markup {
    html! {
        div.counts {
            @for (verdict, count) in tally(page) {
                @let (class, sign) = look(verdict);
                div class=(format!("part-of {class}")) style=(format!("flex-grow:{count}")) {
                    strong { (count) } " " span aria-hidden="true" { (sign) } " " (verdict.words())
                }
            }
        }
    }
}

/// Every claim with its source, verdict and evidence: the only place where they are stated.
fn glance(page: &Page) -> Markup {
    if page.sections.iter().all(|s| s.claims.is_empty()) {
        return Markup::default();
    }
    html! {
        section.glance #glance {
            h2 { "Every claim and its verdict" }
            @if !page.documents.is_empty() {
                ul.documents { @for (name, title) in &page.documents { li { (prose(title)) @if name != title { " \
                    (" strong { (prose(name)) } ")" } } } }
            }
            (counts(page))
            div.filter hidden {
                label { "Document " select #by-document { option value="" { "all" } @for (name, _) in &page.documents { option { (name) } } } }
                label { "Verdict " select #by-verdict { option value="" { "all" } @for (verdict, _) in &tally(page) { option { (verdict.words()) } } } }
                output #shown aria-live="polite" {}
            }
            table.verdicts {
                thead { tr { th scope="col" { "No." } th scope="col" { "Claim, document and \
                    section" } th scope="col" { "Verdict" } th scope="col" { "Evidence" } } }
                tbody {
                    @for (number, section, claim) in numbered(page) {
                        tr id=(format!("claim-{number}")) data-document=(claim.document) data-verdict=(claim.verdict.words()) {
                            td { (number) }
                            td {
                                a href=(link(&section.id)) { (prose(&claim.text)) }
                                @if !claim.document.is_empty() {
                                    span.source { (prose(&claim.document)) @if !claim.section.is_empty() { ", " (prose(&claim.section)) } }
                                }
                            }
                            td { (badge(claim.verdict)) }
                            td { (prose(&claim.because)) }
                        }
                    }
                }
            }
        }
    }
}

/// The claims in the order of their sections, numbered from 1.
fn numbered(page: &Page) -> impl Iterator<Item = (usize, &Section, &Claim)> {
    let claims = page.sections.iter().flat_map(|section| section.claims.iter().map(move |claim| (section, claim)));
    claims.enumerate().map(|(i, (section, claim))| (i + 1, section, claim))
}

/// The rules of all verdicts, folded.
fn methods(page: &Page) -> Markup {
    if page.methods.is_empty() {
        return Markup::default();
    }
    html! {
        details.methods #methods {
            summary { "Methods: the rule of each verdict" }
            p { "A verdict needs evidence clear of its edge; otherwise the claim is undecided. False rate: how often a quantity exactly \
                 at the edge is decided, tested by simulation." }
            table {
                thead { tr { th { "Decides" } th { "Edge" } th { "False rate" } } }
                tbody { @for [decides, edge, rate] in &page.methods { tr { td { (prose(decides)) } td { (prose(edge)) } td { (prose(rate)) } } } }
            }
            @if numbered(page).any(|(_, _, claim)| !claim.edge.is_empty()) {
                table {
                    thead { tr { th { "Claim" } th { "Its rule" } } }
                    tbody { @for (number, _, claim) in numbered(page) {
                        tr { td { a href=(format!("#claim-{number}")) { (number) } } td { (prose(&claim.edge)) } }
                    } }
                }
            }
            p { (prose("\u{b1} and bands: 95 % intervals, by Student's t for means, Wilson for shares, Woodruff for quantiles, bootstrap \
                over \
                 texts. Observations are draws, trainings (seeds) or texts. p: sign-flip test; q: Benjamini-Hochberg. Heat maps: rows are \
                 queries, columns keys. Losses: nats per token. Stored results come with the program; `regard report --train` repeats \
                 the trainings. The same command gives the same tables, except for times and memory.")) }
        }
    }
}

/// One experiment; its first claim has the number `first`.
fn section(section: &Section, first: usize) -> Result<Markup, FigureError> {
    let id = anchor(&section.id);
    let figures = section.figures.iter().enumerate().map(|(i, figure)| self::figure(figure, &format!("{id}-figure{}", i + 1)));
    let figures = figures.collect::<Result<Vec<_>, _>>()?;
    Ok(html! {
        section id=(id) {
            h2 { a.self href=(link(&id)) { (prose(&section.title)) } }
            @if !section.intro.is_empty() { p { (prose(&section.intro)) } }
            @if !section.claims.is_empty() {
                p.judged {
                    span.tag { @if section.claims.len() == 1 { "Claim" } @else { "Claims" } }
                    @for (claim, number) in section.claims.iter().zip(first..) {
                        " " a href=(format!("#claim-{number}")) title=(plain(&claim.text)) { (number) } " " (badge(claim.verdict))
                    }
                }
            }
            @for figure in &figures { (figure) }
            @for shown in &section.tables { (table(shown)) }
            @for note in &section.notes { p.remark { (prose(note)) } }
            @if !section.command.is_empty() {
                div.rerun {
                    pre tabindex="0" { code { (section.command) } }
                    button.copy type="button" { "Copy" }
                }
            }
        }
    })
}

fn figure(figure: &Figure, id: &str) -> Result<Markup, FigureError> {
    let title = plain(&figure.title);
    let fragments = figure.fragments(id)?;
    Ok(html! {
        figure id=(id) class=[figure.shared_scale.then_some("grid")] {
            div.figure-head {
                h3 { (prose(&figure.title)) }
                button.enlarge type="button" aria-label=(format!("Enlarge: {title}")) { span aria-hidden="true" { "\u{2922}" } }
            }
            div.plot tabindex="0" role="group"
                aria-label=(format!("{}. Arrow keys read the values, Enter enlarges.", title.trim_end_matches('.'))) {
                div.panels { @for fragment in &fragments { (PreEscaped(fragment)) } }
            }
            @if !figure.caption.is_empty() { figcaption { (prose(&figure.caption)) } }
        }
    })
}

/// Is every cell of a column a number (or missing)?
fn numeric(table: &Table, column: usize) -> bool {
    table.rows.iter().all(|r| !matches!(r.get(column), Some(Value::Text(_) | Value::Flag(_))))
}

/// The columns that are seen: a number and the ends of its interval stand in one.
fn seen(table: &Table, columns: &[String]) -> Vec<usize> {
    if columns.is_empty() {
        return (0..table.columns.len()).filter(|&c| !table.is_end(&table.columns[c].name)).collect();
    }
    columns.iter().filter_map(|name| table.position(name)).collect()
}

fn table(Shown { table, columns }: &Shown) -> Markup {
    let here = seen(table, columns);
    let rows = table.rows.len();
    let kinds: Vec<&str> = here.iter().map(|&c| if numeric(table, c) { "n" } else { "t" }).collect();
    let wide = if here.len() > WIDE { "data wide" } else { "data" };
    // The whole table, as a run writes it.
    let csv = base64::engine::general_purpose::STANDARD.encode(table.to_csv());
    html! {
        details class=(wide) open[rows <= OPEN_ROWS] {
            summary {
                (prose(&table.caption)) " "
                @if rows > OPEN_ROWS { span.count { (rows) " rows" } }
            }
            div.scroll tabindex="0" role="region" aria-label=(plain(&table.caption)) {
                table {
                    thead { tr {
                        @for (&c, kind) in here.iter().zip(&kinds) {
                            @let column = &table.columns[c];
                            th scope="col" class=(kind) {
                                button type="button" { (prose(if column.title.is_empty() { &column.name } else { &column.title })) }
                            }
                        }
                    } }
                    tbody {
                        @for row in &table.rows {
                            tr { @for (&c, kind) in here.iter().zip(&kinds) { (cell(table, row, c, kind)) } }
                        }
                    }
                }
            }
            p.take {
                a download=(format!("{}.csv", file_name(&table.name))) href=(format!("data:text/csv;charset=utf-8;base64,{csv}")) { "CSV" }
            }
        }
    }
}

fn cell(table: &Table, row: &[Value], column: usize, kind: &str) -> Markup {
    let value = &row[column];
    if let (Some(x), Some((low, high))) = (value.number(), table.interval(row, &table.columns[column].name)) {
        return html! { td class=(kind) data-v=(x) { (prose(&with_interval(x, low, high))) } };
    }
    match value {
        Value::Number(x) => html! { td class=(kind) data-v=(x) { (cell_text(value)) } },
        Value::Integer(x) => html! { td class=(kind) data-v=(x) { (cell_text(value)) } },
        Value::Text(text) => html! { td class=(kind) { (prose(text)) } },
        Value::Flag(_) | Value::Missing => html! { td class=(kind) { (cell_text(value)) } },
    }
}

/// A file name without anything that could lead out of a folder.
fn file_name(name: &str) -> String {
    let clean: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' }).collect();
    if clean.is_empty() { "table".to_owned() } else { clean }
}

fn origin(origin: &[(String, String)]) -> Markup {
    html! {
        footer {
            h2 { "Where this came from" }
            dl { @for (key, value) in origin { div { dt { (key) } dd { (value) } } } }
        }
    }
}
