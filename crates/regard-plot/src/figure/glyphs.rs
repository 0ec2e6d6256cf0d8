//! Text as outlines: Noto Sans, and DejaVu Sans for the characters that it lacks.

use super::fonts;
use rustybuzz::{Face, UnicodeBuffer};
use std::sync::OnceLock;
use tiny_skia::PathBuilder;
use ttf_parser::{GlyphId, OutlineBuilder};

fn faces(bold: bool) -> &'static [Face<'static>] {
    static FACES: OnceLock<[Vec<Face<'static>>; 2]> = OnceLock::new();
    let load = |first: &'static [u8]| [first, fonts::DEJAVU_SANS].into_iter().filter_map(|data| Face::from_slice(data, 0)).collect();
    &FACES.get_or_init(|| [load(fonts::NOTO_SANS), load(fonts::NOTO_SANS_BOLD)])[usize::from(bold)]
}

/// Scales font units to drawing units, with y downwards.
struct Pen<'p> {
    path: &'p mut PathBuilder,
    at: (f32, f32),
    scale: f32,
}

impl Pen<'_> {
    fn place(&self, x: f32, y: f32) -> (f32, f32) {
        (self.at.0 + x * self.scale, self.at.1 - y * self.scale)
    }
}

impl OutlineBuilder for Pen<'_> {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.place(x, y);
        self.path.move_to(x, y);
    }
    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.place(x, y);
        self.path.line_to(x, y);
    }
    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.place(x1, y1), self.place(x, y));
        self.path.quad_to(x1, y1, x, y);
    }
    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.place(x1, y1), self.place(x2, y2), self.place(x, y));
        self.path.cubic_to(x1, y1, x2, y2, x, y);
    }
    fn close(&mut self) {
        self.path.close();
    }
}

/// The face that has a character; the first one's empty box where none has it.
fn face_of(faces: &[Face<'_>], c: char) -> usize {
    faces.iter().position(|face| face.glyph_index(c).is_some()).unwrap_or(0)
}

/// Append the outlines of a text that begins at `at`, and return its width.
pub(super) fn append(path: &mut PathBuilder, text: &str, size: f32, bold: bool, at: (f32, f32)) -> f32 {
    let faces = faces(bold);
    let mut width = 0.0;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let which = face_of(faces, first);
        let end = rest.char_indices().find(|(_, c)| face_of(faces, *c) != which).map_or(rest.len(), |(at, _)| at);
        let Some(face) = faces.get(which) else { return width };
        let mut buffer = UnicodeBuffer::new();
        buffer.push_str(&rest[..end]);
        let shaped = rustybuzz::shape(face, &[], buffer);
        let scale = size / face.units_per_em() as f32;
        for (glyph, place) in shaped.glyph_infos().iter().zip(shaped.glyph_positions()) {
            let at = (at.0 + width + place.x_offset as f32 * scale, at.1 - place.y_offset as f32 * scale);
            face.outline_glyph(GlyphId(glyph.glyph_id as u16), &mut Pen { path, at, scale });
            width += place.x_advance as f32 * scale;
        }
        rest = &rest[end..];
    }
    width
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_as_wide_as_the_layout_expects() {
        for text in ["entropy (nats)", "Head 3.1", "max_weight", "0.938", "\u{2423}the \u{23ce}"] {
            let (set, planned) =
                (append(&mut PathBuilder::new(), text, 20.0, false, (0.0, 0.0)), crate::figure::text::raw_width(text, 20.0));
            // Kerning moves a pair of letters by little.
            assert!((f64::from(set) - planned).abs() < 0.02 * planned, "{text}: {set} instead of {planned}");
        }
    }

    #[test]
    fn characters_of_other_scripts_have_outlines() {
        for text in ["\u{3b1}\u{3b2}", "\u{436}", "\u{633}\u{644}\u{627}\u{645}", "\u{2423}", "\u{1F600}"] {
            let mut path = PathBuilder::new();
            assert!(append(&mut path, text, 12.0, true, (0.0, 0.0)) > 0.0, "{text}");
            assert!(!path.is_empty(), "{text}");
        }
    }
}
