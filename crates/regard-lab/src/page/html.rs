//! The page's markup.

use super::script::SCRIPT;
use super::style::style;
use super::{Claim, Lead, Page, Section, Verdict};
use crate::figure::{ColourMap, Figure, FigureError, Level, cell_text, escape, plain, runs};
use crate::table::{Table, Value};
use base64::Engine as _;
use std::fmt::Write as _;

/// Tables of more rows than this are folded.
const OPEN_ROWS: usize = 14;

/// The whole page.
pub(super) fn page(page: &Page) -> Result<String, FigureError> {
    let mut out = String::with_capacity(1 << 20);
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#main\">Skip to the answer</a>\n",
        escape(&plain(&page.title)),
        style()
    );
    let _ = writeln!(
        out,
        "<header class=\"top\"><div><h1>{}</h1>{}</div>\
         <button type=\"button\" id=\"theme\" aria-label=\"Switch between light and dark\"><span aria-hidden=\"true\">\u{25d0}</span></button></header>",
        prose(&page.title),
        if page.subtitle.is_empty() { String::new() } else { format!("<p class=\"subtitle\">{}</p>", prose(&page.subtitle)) }
    );
    contents(&mut out, page);
    out.push_str("<main id=\"main\">\n");
    lead(&mut out, &page.lead)?;
    glance(&mut out, page);
    for section in &page.sections {
        self::section(&mut out, section)?;
    }
    out.push_str("</main>\n");
    origin(&mut out, &page.origin);
    let _ = write!(
        out,
        "<dialog id=\"zoom\" aria-label=\"Enlarged figure\"><button type=\"button\" id=\"zoom-close\" aria-label=\"Close\">\u{2715}</button><div id=\"zoom-body\"></div></dialog>\n\
         <div id=\"tip\" role=\"status\" aria-live=\"polite\"></div>\n<script>\"use strict\";const COLOURS={};\n{SCRIPT}</script>\n</body>\n</html>\n",
        palettes(&out)
    );
    Ok(out)
}

/// The colours of the maps that the page has pictures of, for reading values back.
fn palettes(page: &str) -> String {
    let maps = [ColourMap::Viridis, ColourMap::Cividis, ColourMap::Magma, ColourMap::PurpleOrange];
    let used = maps.into_iter().filter(|m| page.contains(&format!("data-map=\"{m:?}\"")));
    let parts: Vec<String> = used.map(|m| format!("\"{m:?}\":\"{}\"", m.palette_hex())).collect();
    format!("{{{}}}", parts.join(","))
}

/// Text with the small markup: scripts and code. Everything is escaped.
pub(super) fn prose(text: &str) -> String {
    let mut out = String::new();
    for (i, part) in text.split('`').enumerate() {
        // An odd part stands between two backticks, unless the last one was never closed.
        let code = i % 2 == 1 && text.matches('`').count() > i;
        if code {
            let _ = write!(out, "<code>{}</code>", escape(part));
            continue;
        }
        if i % 2 == 1 {
            out.push('`');
        }
        for (level, run) in runs(part) {
            let run = escape(run);
            let _ = match level {
                Level::Line => write!(out, "{run}"),
                Level::Sub => write!(out, "<sub>{run}</sub>"),
                Level::Super => write!(out, "<sup>{run}</sup>"),
            };
        }
    }
    out
}

/// An anchor: letters, digits and dashes only.
fn anchor(id: &str) -> String {
    let clean: String = id.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    if clean.is_empty() { "section".to_owned() } else { clean }
}

fn contents(out: &mut String, page: &Page) {
    out.push_str("<nav class=\"toc\" aria-label=\"Contents\"><ol>");
    for section in &page.sections {
        let _ = write!(out, "<li><a href=\"#{}\">{}</a></li>", anchor(&section.id), prose(&section.title));
    }
    out.push_str("</ol></nav>\n");
}

fn lead(out: &mut String, lead: &Lead) -> Result<(), FigureError> {
    if lead.question.is_empty() && lead.answer.is_empty() && lead.figure.is_none() {
        return Ok(());
    }
    let _ = write!(out, "<section class=\"lead\" id=\"answer\"><h2>{}</h2>", prose(&lead.question));
    if !lead.answer.is_empty() {
        let sentences: Vec<String> = lead.answer.iter().map(|s| prose(s)).collect();
        let _ = write!(out, "<p class=\"answer\">{}</p>", sentences.join(" "));
    }
    if let Some(figure) = &lead.figure {
        self::figure(out, figure, "answer-figure")?;
    }
    out.push_str("</section>\n");
    Ok(())
}

fn badge(verdict: Verdict) -> String {
    let (class, sign) = match verdict {
        Verdict::Holds => ("good", "\u{2713}"),
        Verdict::HoldsInPart => ("part", "\u{25d1}"),
        Verdict::Illustrative => ("note", "\u{223c}"),
        Verdict::LuckyDraw => ("part", "\u{2684}"),
        Verdict::WrongAsWorded => ("bad", "\u{2260}"),
        Verdict::Wrong => ("bad", "\u{2715}"),
        Verdict::NotChecked => ("none", "?"),
    };
    format!("<span class=\"badge {class}\"><span aria-hidden=\"true\">{sign}</span> {}</span>", verdict.words())
}

/// Every claim with its verdict, on one screen.
fn glance(out: &mut String, page: &Page) {
    if page.sections.iter().all(|s| s.claims.is_empty()) {
        return;
    }
    out.push_str("<section class=\"glance\" id=\"glance\"><h2>Every claim at a glance</h2><ul>");
    for section in &page.sections {
        for claim in &section.claims {
            let _ = write!(out, "<li>{}<a href=\"#{}\">{}</a></li>", badge(claim.verdict), anchor(&section.id), prose(&claim.text));
        }
    }
    out.push_str("</ul></section>\n");
}

fn section(out: &mut String, section: &Section) -> Result<(), FigureError> {
    let id = anchor(&section.id);
    let _ = write!(out, "<section id=\"{id}\"><h2><a class=\"self\" href=\"#{id}\">{}</a></h2>", prose(&section.title));
    if !section.intro.is_empty() {
        let _ = write!(out, "<p>{}</p>", prose(&section.intro));
    }
    for Claim { text, verdict, because } in &section.claims {
        let _ = write!(
            out,
            "<div class=\"claim\"><p class=\"said\"><span class=\"tag\">Claim</span> {}</p><p class=\"verdict\">{} {}</p></div>",
            prose(text),
            badge(*verdict),
            prose(because)
        );
    }
    for (i, figure) in section.figures.iter().enumerate() {
        self::figure(out, figure, &format!("{id}-figure{}", i + 1))?;
    }
    for table in &section.tables {
        self::table(out, table);
    }
    for note in &section.notes {
        let _ = write!(out, "<p class=\"remark\">{}</p>", prose(note));
    }
    if !section.command.is_empty() {
        let _ = write!(
            out,
            "<div class=\"rerun\"><span class=\"tag\">Run it</span><pre tabindex=\"0\"><code>{}</code></pre><button type=\"button\" class=\"copy\">Copy</button></div>",
            escape(&section.command)
        );
    }
    out.push_str("</section>\n");
    Ok(())
}

fn figure(out: &mut String, figure: &Figure, id: &str) -> Result<(), FigureError> {
    let title = plain(&figure.title);
    let _ = write!(
        out,
        "<figure id=\"{id}\"><div class=\"figure-head\"><h3>{}</h3><button type=\"button\" class=\"enlarge\" aria-label=\"Enlarge: {}\">\
         <span aria-hidden=\"true\">\u{2922}</span></button></div><div class=\"plot\" tabindex=\"0\" role=\"group\" aria-label=\"{}. Arrow keys read the values, Enter enlarges.\"><div class=\"panels\">",
        prose(&figure.title),
        escape(&title),
        escape(title.trim_end_matches('.'))
    );
    for fragment in figure.fragments(id)? {
        out.push_str(&fragment);
    }
    out.push_str("</div></div>");
    if !figure.caption.is_empty() {
        let _ = write!(out, "<figcaption>{}</figcaption>", prose(&figure.caption));
    }
    out.push_str("</figure>\n");
    Ok(())
}

/// Is every cell of a column a number (or missing)?
fn numeric(table: &Table, column: usize) -> bool {
    table.rows.iter().all(|r| !matches!(r.get(column), Some(Value::Text(_) | Value::Flag(_))))
}

fn table(out: &mut String, table: &Table) {
    let open = if table.rows.len() <= OPEN_ROWS { " open" } else { "" };
    let rows = table.rows.len();
    let _ = write!(
        out,
        "<details class=\"data\"{open}><summary><span class=\"tag\">Table</span> {} <span class=\"count\">{rows} row{}</span></summary>\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table><thead><tr>",
        prose(&table.caption),
        if rows == 1 { "" } else { "s" },
        escape(&plain(&table.caption))
    );
    let kinds: Vec<&str> = (0..table.columns.len()).map(|c| if numeric(table, c) { "n" } else { "t" }).collect();
    for (column, kind) in table.columns.iter().zip(&kinds) {
        let title = if column.title.is_empty() { &column.name } else { &column.title };
        let _ = write!(out, "<th scope=\"col\" class=\"{kind}\"><button type=\"button\">{}</button></th>", prose(title));
    }
    out.push_str("</tr></thead><tbody>");
    for row in &table.rows {
        out.push_str("<tr>");
        for (cell, kind) in row.iter().zip(&kinds) {
            let exact = match cell {
                Value::Number(x) => format!(" data-v=\"{x}\""),
                Value::Integer(x) => format!(" data-v=\"{x}\""),
                _ => String::new(),
            };
            let text = if let Value::Text(text) = cell { prose(text) } else { escape(&cell_text(cell)) };
            let _ = write!(out, "<td class=\"{kind}\"{exact}>{text}</td>");
        }
        out.push_str("</tr>");
    }
    let csv = base64::engine::general_purpose::STANDARD.encode(table.to_csv());
    let _ = writeln!(
        out,
        "</tbody></table></div><p class=\"take\"><a download=\"{}.csv\" href=\"data:text/csv;charset=utf-8;base64,{csv}\">Download CSV</a></p></details>",
        anchor_name(&table.name)
    );
}

/// A file name without anything that could lead out of a folder.
fn anchor_name(name: &str) -> String {
    let clean: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' }).collect();
    if clean.is_empty() { "table".to_owned() } else { clean }
}

fn origin(out: &mut String, origin: &[(String, String)]) {
    out.push_str("<footer><h2>Where this came from</h2><dl>");
    for (key, value) in origin {
        let _ = write!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escape(key), escape(value));
    }
    out.push_str("</dl></footer>\n");
}
