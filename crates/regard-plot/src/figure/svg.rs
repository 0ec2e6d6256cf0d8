//! The SVG being written: marks with inks, escaped text, numbers with two decimals. Same calls, same bytes.

use super::text::{FONTS, Level, SCRIPT, is_xml_char, plain, runs};
use super::theme::{Ink, Theme, repaint};
use std::fmt::Write as _;

/// Escape text for XML and HTML; characters that XML forbids become U+FFFD.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if is_xml_char(c) => out.push(c),
            _ => out.push('\u{fffd}'),
        }
    }
    out
}

/// A coordinate: two decimals at most, no `-0`.
pub(crate) fn n(x: f64) -> String {
    let mut s = format!("{x:.2}");
    if s.contains('.') {
        s.truncate(s.trim_end_matches('0').trim_end_matches('.').len());
    }
    if s == "-0" { "0".to_owned() } else { s }
}

/// What an SVG is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// A file of its own.
    File,
    /// A part of an HTML page.
    Page,
    /// Our PNG renderer.
    Png,
}

/// Which side of its point a text stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    /// To the right of the point.
    Start,
    /// Centred.
    Middle,
    /// To the left.
    End,
}

/// How a text is set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextStyle {
    pub(crate) size: f64,
    pub(crate) ink: Ink,
    pub(crate) anchor: Anchor,
    pub(crate) bold: bool,
    /// Degrees, clockwise.
    pub(crate) turn: f64,
    /// A rim of paper colour, for text over lines.
    pub(crate) halo: bool,
}

impl TextStyle {
    pub(crate) fn new(size: f64, ink: Ink) -> Self {
        Self { size, ink, anchor: Anchor::Start, bold: false, turn: 0.0, halo: false }
    }
    pub(crate) fn anchor(mut self, anchor: Anchor) -> Self {
        self.anchor = anchor;
        self
    }
    pub(crate) fn bold(mut self) -> Self {
        self.bold = true;
        self
    }
    pub(crate) fn turn(mut self, degrees: f64) -> Self {
        self.turn = degrees;
        self
    }
    pub(crate) fn halo(mut self) -> Self {
        self.halo = true;
        self
    }
}

/// An SVG body under construction.
pub(crate) struct Svg {
    body: String,
    theme: Theme,
    /// Prefix of every id, so that several drawings can stand in one page.
    id: String,
    next_id: usize,
    hatch: bool,
}

impl Svg {
    pub(crate) fn new(theme: Theme, id: &str) -> Self {
        Self { body: String::new(), theme, id: id.to_owned(), next_id: 0, hatch: false }
    }

    /// What an ink looks like here.
    pub(crate) fn colour(&self, ink: Ink) -> &'static str {
        ink.colour(self.theme)
    }

    fn fill(&self, ink: Ink) -> String {
        format!("fill=\"{}\"", ink.colour(self.theme))
    }

    fn stroke(&self, ink: Ink) -> String {
        format!("stroke=\"{}\"", ink.colour(self.theme))
    }

    /// An id that no other mark of the page has.
    pub(crate) fn fresh_id(&mut self, what: &str) -> String {
        self.next_id += 1;
        format!("{}-{what}{}", self.id, self.next_id)
    }

    /// Write markup as it is.
    pub(crate) fn raw(&mut self, markup: &str) {
        self.body.push_str(markup);
    }

    pub(crate) fn open(&mut self, attributes: &str) {
        let _ = write!(self.body, "<g {attributes}>");
    }

    pub(crate) fn close(&mut self) {
        self.body.push_str("</g>\n");
    }

    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), ink: Ink, width: f64, dash: &str) {
        let dash = if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
        let _ = write!(
            self.body,
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" class=\"rs-{}\" {} stroke-width=\"{}\"{dash}/>",
            n(from.0),
            n(from.1),
            n(to.0),
            n(to.1),
            ink.name(),
            self.stroke(ink),
            n(width)
        );
    }

    /// A rectangle with a hover text, if any.
    pub(crate) fn rect(&mut self, x: f64, y: f64, w: f64, h: f64, ink: Ink, extra: &str, title: &str) {
        let _ = write!(
            self.body,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"rf-{}\" {} {extra}",
            n(x),
            n(y),
            n(w.max(0.0)),
            n(h.max(0.0)),
            ink.name(),
            self.fill(ink)
        );
        self.end_with_title("rect", title);
    }

    /// An outline.
    pub(crate) fn frame(&mut self, x: f64, y: f64, w: f64, h: f64, ink: Ink, width: f64) {
        let _ = write!(
            self.body,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" class=\"rs-{}\" {} stroke-width=\"{}\"/>",
            n(x),
            n(y),
            n(w),
            n(h),
            ink.name(),
            self.stroke(ink),
            n(width)
        );
    }

    fn end_with_title(&mut self, element: &str, title: &str) {
        if title.is_empty() {
            self.body.push_str("/>");
        } else {
            let _ = write!(self.body, "><title>{}</title></{element}>", escape(title));
        }
    }

    /// A stroked path.
    pub(crate) fn path(&mut self, d: &str, ink: Ink, width: f64, dash: &str) {
        let dash = if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
        let _ = write!(
            self.body,
            "<path d=\"{d}\" fill=\"none\" class=\"rs-{}\" {} stroke-width=\"{}\" stroke-linejoin=\"round\" \
             stroke-linecap=\"round\"{dash}/>",
            ink.name(),
            self.stroke(ink),
            n(width)
        );
    }

    /// A filled path.
    pub(crate) fn area(&mut self, d: &str, ink: Ink, opacity: f64) {
        let _ = write!(self.body, "<path d=\"{d}\" class=\"rf-{}\" {} fill-opacity=\"{}\"/>", ink.name(), self.fill(ink), n(opacity));
    }

    /// A filled shape with a rim of another ink.
    pub(crate) fn shape(&mut self, d: &str, fill: Ink, rim: Ink, rim_width: f64) {
        let _ = write!(
            self.body,
            "<path d=\"{d}\" class=\"rf-{} rs-{}\" {} {} stroke-width=\"{}\"/>",
            fill.name(),
            rim.name(),
            self.fill(fill),
            self.stroke(rim),
            n(rim_width)
        );
    }

    /// Something to point at, with a value to read.
    pub(crate) fn target(&mut self, x: f64, y: f64, radius: f64, title: &str) {
        let _ = write!(
            self.body,
            "<circle class=\"rt\" cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"#000\" fill-opacity=\"0\"><title>{}</title></circle>",
            n(x),
            n(y),
            n(radius),
            escape(title)
        );
    }

    /// Marked-up text; see [`super::text`].
    pub(crate) fn text(&mut self, x: f64, y: f64, text: &str, style: TextStyle) {
        let runs = runs(text);
        self.open_text(x, y, style);
        let mut shift = 0.0;
        for (level, run) in runs {
            let wanted = match level {
                Level::Line => 0.0,
                Level::Sub => 0.26 * style.size,
                Level::Super => -0.36 * style.size,
            };
            if level == Level::Line && shift == 0.0 {
                self.body.push_str(&escape(run));
            } else {
                let size = if level == Level::Line { style.size } else { style.size * SCRIPT };
                let _ = write!(self.body, "<tspan dy=\"{}\" font-size=\"{}\">{}</tspan>", n(wanted - shift), n(size), escape(run));
            }
            shift = wanted;
        }
        self.body.push_str("</text>");
    }

    /// Text as it is: a token.
    pub(crate) fn raw_text(&mut self, x: f64, y: f64, text: &str, style: TextStyle) {
        self.open_text(x, y, style);
        self.body.push_str(&escape(text));
        self.body.push_str("</text>");
    }

    fn open_text(&mut self, x: f64, y: f64, style: TextStyle) {
        let _ = write!(self.body, "<text x=\"{}\" y=\"{}\" font-size=\"{}\"", n(x), n(y), n(style.size));
        if style.halo {
            let _ = write!(
                self.body,
                " class=\"rf-{} rs-paper\" {} stroke-width=\"3.5\" stroke-linejoin=\"round\" paint-order=\"stroke\"",
                style.ink.name(),
                self.stroke(Ink::Paper)
            );
        } else {
            let _ = write!(self.body, " class=\"rf-{}\"", style.ink.name());
        }
        let _ = write!(self.body, " {}", self.fill(style.ink));
        match style.anchor {
            Anchor::Start => {}
            Anchor::Middle => self.body.push_str(" text-anchor=\"middle\""),
            Anchor::End => self.body.push_str(" text-anchor=\"end\""),
        }
        if style.bold {
            self.body.push_str(" font-weight=\"700\"");
        }
        if style.turn != 0.0 {
            let _ = write!(self.body, " transform=\"rotate({} {} {})\"", n(style.turn), n(x), n(y));
        }
        self.body.push('>');
    }

    /// Fill a rectangle with the sign for "hidden".
    pub(crate) fn hatch(&mut self, x: f64, y: f64, w: f64, h: f64, title: &str) {
        self.hatch = true;
        let id = &self.id;
        let _ = write!(self.body, "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"url(#{id}-hatch)\"", n(x), n(y), n(w), n(h));
        self.end_with_title("rect", title);
    }

    /// The whole document. A file of its own has colours for readers with a dark page.
    /// A part of a page needs no namespace, and a renderer no style sheet.
    pub(crate) fn finish(&self, width: f64, height: f64, alt: &str, use_: Use) -> String {
        let (theme, id) = (self.theme, self.id.clone());
        let mut out = format!(
            "<svg{space}{limit} viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" role=\"img\" aria-label=\"{alt}\" \
             font-family=\"{FONTS}\">",
            space = if use_ == Use::Page { "" } else { " xmlns=\"http://www.w3.org/2000/svg\"" },
            // On a page a figure may grow a little, not without limit.
            limit = if use_ == Use::Page { format!(" style=\"max-width:{}px\"", n((width * 1.2).round())) } else { String::new() },
            w = n(width),
            h = n(height),
            alt = escape(&plain(alt)),
        );
        if use_ == Use::File {
            let _ = write!(
                out,
                "<style>text{{font-variant-numeric:tabular-nums}}@media (prefers-color-scheme:dark){{{}}}</style>",
                repaint(Theme::Dark)
            );
        }
        if self.hatch {
            let _ = write!(
                out,
                "<defs><pattern id=\"{id}-hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
                 <rect width=\"6\" height=\"6\" class=\"rf-hidden\" fill=\"{}\"/><line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\" \
                 class=\"rs-hatch\" stroke=\"{}\" \
                 stroke-width=\"1.6\"/></pattern></defs>",
                Ink::Hidden.colour(theme),
                Ink::Hatch.colour(theme)
            );
        }
        let _ = writeln!(
            out,
            "<rect width=\"{}\" height=\"{}\" class=\"rf-paper\" fill=\"{}\"/>",
            n(width),
            n(height),
            Ink::Paper.colour(theme)
        );
        out.push_str(&self.body);
        out.push_str("</svg>\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_are_short_and_never_minus_zero() {
        assert_eq!([n(1.0), n(-0.001), n(2.345), n(10.5)], ["1", "0", "2.35", "10.5"].map(str::to_owned));
        assert_eq!(n(100.0), "100");
    }

    #[test]
    fn text_is_escaped_and_forbidden_characters_replaced() {
        assert_eq!(escape("<a & 'b'>\u{1}"), "&lt;a &amp; &#39;b&#39;&gt;\u{fffd}");
    }

    #[test]
    fn scripts_return_to_the_line() {
        let mut svg = Svg::new(Theme::Light, "t");
        svg.text(0.0, 0.0, "d_{k} x", TextStyle::new(10.0, Ink::Text));
        assert!(svg.body.contains("d<tspan dy=\"2.6\" font-size=\"7.2\">k</tspan><tspan dy=\"-2.6\" font-size=\"10\"> x</tspan>"));
    }
}
