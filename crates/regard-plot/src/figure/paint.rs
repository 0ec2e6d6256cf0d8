//! Paints the SVG that [`super::svg::Svg`] writes onto pixels.
//!
//! It knows the elements and attributes of that writer and no others: anything else is an error, so a drawing that looks right in a
//! browser cannot silently lack a mark as PNG. Curves, strokes and blending are `tiny-skia`'s; glyphs are outlines of our own fonts,
//! shaped by `rustybuzz`. A general SVG renderer does the same with five more crates and a minute of compiling.

use super::{FigureError, glyphs};
use base64::Engine as _;
use roxmltree::{Document, Node};
use std::collections::HashMap;
use tiny_skia::{
    Color, FillRule, FilterQuality, GradientStop, LineCap, LineJoin, LinearGradient, Mask, Paint, Path, PathBuilder, Pattern, Pixmap,
    PixmapPaint, Point, Rect, Shader, SpreadMode, Stroke, StrokeDash, Transform,
};

fn failed(reason: impl std::fmt::Display) -> FigureError {
    FigureError::Png { reason: reason.to_string() }
}

type Result<T> = std::result::Result<T, FigureError>;

/// A parsed drawing, with its pictures and hatching decoded.
pub(super) struct Drawing<'d> {
    document: &'d Document<'d>,
    ids: HashMap<&'d str, Node<'d, 'd>>,
    images: HashMap<roxmltree::NodeId, Pixmap>,
    hatching: HashMap<&'d str, Pixmap>,
    /// Pixels per unit.
    scale: f32,
}

/// What the groups around an element say.
#[derive(Clone, Copy)]
struct Inherited<'m> {
    clip: Option<&'m Mask>,
    crisp: bool,
    stroke: Option<Color>,
    stroke_width: f32,
}

fn number(node: Node<'_, '_>, name: &str) -> Result<Option<f32>> {
    node.attribute(name).map(|text| text.parse().map_err(|_| failed(format!("{name}=\"{text}\" is not a number")))).transpose()
}

fn coordinate(node: Node<'_, '_>, name: &str) -> Result<f32> {
    Ok(number(node, name)?.unwrap_or(0.0))
}

fn colour(text: &str) -> Result<Color> {
    let digits = text.strip_prefix('#').ok_or_else(|| failed(format!("colour {text}: expected #rgb or #rrggbb")))?;
    let value = u32::from_str_radix(digits, 16).map_err(failed)?;
    match digits.len() {
        3 => Ok(Color::from_rgba8((value >> 8) as u8 * 17, (value >> 4 & 15) as u8 * 17, (value & 15) as u8 * 17, 255)),
        6 => Ok(Color::from_rgba8((value >> 16) as u8, (value >> 8) as u8, value as u8, 255)),
        _ => Err(failed(format!("colour {text}: expected #rgb or #rrggbb"))),
    }
}

fn reference(text: &str) -> Option<&str> {
    text.strip_prefix("url(#")?.strip_suffix(')')
}

fn faded(mut colour: Color, opacity: Option<f32>) -> Color {
    colour.apply_opacity(opacity.unwrap_or(1.0));
    colour
}

fn solid(colour: Color, crisp: bool) -> Paint<'static> {
    Paint { shader: Shader::SolidColor(colour), anti_alias: !crisp, ..Paint::default() }
}

fn rectangle(node: Node<'_, '_>) -> Result<[f32; 4]> {
    Ok([coordinate(node, "x")?, coordinate(node, "y")?, coordinate(node, "width")?, coordinate(node, "height")?])
}

/// A rectangle with round corners; `None` where it has no area.
fn rectangle_path([x, y, w, h]: [f32; 4], radius: f32) -> Option<Path> {
    if w <= 0.0 || h <= 0.0 {
        return None;
    }
    let r = radius.min(w / 2.0).min(h / 2.0);
    if r <= 0.0 {
        return Some(PathBuilder::from_rect(Rect::from_xywh(x, y, w, h)?));
    }
    let k = r * (1.0 - KAPPA);
    let mut path = PathBuilder::new();
    path.move_to(x + r, y);
    path.line_to(x + w - r, y);
    path.cubic_to(x + w - k, y, x + w, y + k, x + w, y + r);
    path.line_to(x + w, y + h - r);
    path.cubic_to(x + w, y + h - k, x + w - k, y + h, x + w - r, y + h);
    path.line_to(x + r, y + h);
    path.cubic_to(x + k, y + h, x, y + h - k, x, y + h - r);
    path.line_to(x, y + r);
    path.cubic_to(x, y + k, x + k, y, x + r, y);
    path.close();
    path.finish()
}

/// A quarter of a circle as a cubic curve: the length of its handles, in radii.
const KAPPA: f32 = 0.552_284_8;

/// The commands that our figures use: M, L, H, V, z, their relative forms, and `a` for half circles.
fn path_data(data: &str) -> Result<Option<Path>> {
    let bad = || failed(format!("path data {data:?} is not understood"));
    let mut path = PathBuilder::new();
    let (mut x, mut y) = (0.0_f32, 0.0_f32);
    let mut start = (0.0, 0.0);
    let mut rest = data.trim_start();
    while let Some(command) = rest.chars().next() {
        let body = &rest[command.len_utf8()..];
        let end = body.find(|c: char| c.is_ascii_alphabetic() && c != 'e').unwrap_or(body.len());
        let numbers: Vec<f32> = numbers(&body[..end]).ok_or_else(bad)?;
        rest = &body[end..];
        match (command, numbers.as_slice()) {
            ('M' | 'L', pairs) if !pairs.is_empty() && pairs.len() % 2 == 0 => {
                for (i, pair) in pairs.chunks_exact(2).enumerate() {
                    (x, y) = (pair[0], pair[1]);
                    if command == 'M' && i == 0 {
                        path.move_to(x, y);
                        start = (x, y);
                    } else {
                        path.line_to(x, y);
                    }
                }
            }
            ('H' | 'h' | 'V' | 'v', &[to]) => {
                match command {
                    'H' => x = to,
                    'h' => x += to,
                    'V' => y = to,
                    _ => y += to,
                }
                path.line_to(x, y);
            }
            ('l', &[dx, dy]) => {
                (x, y) = (x + dx, y + dy);
                path.line_to(x, y);
            }
            ('a', &[rx, ry, _, large, sweep, dx, dy]) => {
                if rx != ry || large != 1.0 || sweep != 0.0 || dy != 0.0 || (dx.abs() - 2.0 * rx).abs() > 0.02 {
                    return Err(bad());
                }
                // From (x, y) to (x + dx, y), against the clock: below where dx is positive.
                let (middle, way) = (x + dx / 2.0, dx / 2.0);
                path.cubic_to(x, y + KAPPA * way, middle - KAPPA * way, y + way, middle, y + way);
                path.cubic_to(middle + KAPPA * way, y + way, x + dx, y + KAPPA * way, x + dx, y);
                x += dx;
            }
            ('z' | 'Z', []) => {
                path.close();
                (x, y) = start;
            }
            _ => return Err(bad()),
        }
    }
    Ok(path.finish())
}

/// Numbers between blanks and commas; a minus sign begins a new one.
fn numbers(text: &str) -> Option<Vec<f32>> {
    let mut found = Vec::new();
    for piece in text.split([' ', ',', '\n']).filter(|piece| !piece.is_empty()) {
        let mut first = 0;
        for (at, _) in piece.match_indices('-').filter(|(at, _)| *at > 0 && !piece[..*at].ends_with('e')) {
            found.push(piece[first..at].parse().ok()?);
            first = at;
        }
        found.push(piece[first..].parse().ok()?);
    }
    Some(found)
}

fn decoded(href: &str) -> Result<Pixmap> {
    let base64 = href.strip_prefix("data:image/png;base64,").ok_or_else(|| failed("a picture that is not an embedded PNG"))?;
    let bytes = base64::engine::general_purpose::STANDARD.decode(base64).map_err(failed)?;
    let mut decoder = png::Decoder::new(std::io::Cursor::new(bytes));
    decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::ALPHA);
    let mut reader = decoder.read_info().map_err(failed)?;
    let mut data = vec![0; reader.output_buffer_size().ok_or_else(|| failed("a picture that is too large"))?];
    let info = reader.next_frame(&mut data).map_err(failed)?;
    let mut pixmap = Pixmap::new(info.width, info.height).ok_or_else(|| failed("a picture without pixels"))?;
    for (pixel, rgba) in pixmap.pixels_mut().iter_mut().zip(data.chunks_exact(4)) {
        *pixel = tiny_skia::ColorU8::from_rgba(rgba[0], rgba[1], rgba[2], rgba[3]).premultiply();
    }
    Ok(pixmap)
}

impl<'d> Drawing<'d> {
    pub(super) fn new(document: &'d Document<'d>, scale: f32) -> Result<Self> {
        let mut drawing = Self { document, ids: HashMap::new(), images: HashMap::new(), hatching: HashMap::new(), scale };
        for node in document.descendants().filter(Node::is_element) {
            if let Some(id) = node.attribute("id") {
                drawing.ids.insert(id, node);
                if node.has_tag_name("pattern") {
                    let tile = drawing.tile(node)?;
                    drawing.hatching.insert(id, tile);
                }
            }
            if node.has_tag_name("image") {
                drawing.images.insert(node.id(), decoded(node.attribute("href").unwrap_or(""))?);
            }
        }
        Ok(drawing)
    }

    /// Width and height in units.
    pub(super) fn size(&self) -> Result<(f32, f32)> {
        let root = self.document.root_element();
        Ok((coordinate(root, "width")?, coordinate(root, "height")?))
    }

    /// One tile of a hatching.
    fn tile(&self, pattern: Node<'d, 'd>) -> Result<Pixmap> {
        let [_, _, w, h] = rectangle(pattern)?;
        let pixels = |x: f32| (x * self.scale).round() as u32;
        let mut pixmap = Pixmap::new(pixels(w), pixels(h)).ok_or_else(|| failed("a hatching without pixels"))?;
        let none = Inherited { clip: None, crisp: false, stroke: None, stroke_width: 1.0 };
        for node in pattern.children().filter(Node::is_element) {
            self.element(node, &mut pixmap, Transform::from_scale(self.scale, self.scale), none)?;
        }
        Ok(pixmap)
    }

    /// Paint everything onto pixels whose first row is `first_row` of the whole.
    pub(super) fn paint(&self, pixmap: &mut Pixmap, first_row: u32) -> Result<()> {
        let transform = Transform::from_scale(self.scale, self.scale).post_translate(0.0, -(first_row as f32));
        let none = Inherited { clip: None, crisp: false, stroke: None, stroke_width: 1.0 };
        for node in self.document.root_element().children().filter(Node::is_element) {
            self.element(node, pixmap, transform, none)?;
        }
        Ok(())
    }

    fn element(&self, node: Node<'d, 'd>, pixmap: &mut Pixmap, transform: Transform, inherited: Inherited<'_>) -> Result<()> {
        match node.tag_name().name() {
            "g" => self.group(node, pixmap, transform, inherited),
            "rect" => {
                let path = rectangle_path(rectangle(node)?, coordinate(node, "rx")?);
                self.shape(node, path, pixmap, transform, inherited)
            }
            "path" => self.shape(node, path_data(node.attribute("d").unwrap_or(""))?, pixmap, transform, inherited),
            "circle" => {
                let [x, y, r] = [coordinate(node, "cx")?, coordinate(node, "cy")?, coordinate(node, "r")?];
                self.shape(node, PathBuilder::from_circle(x, y, r), pixmap, transform, inherited)
            }
            "line" => {
                let mut path = PathBuilder::new();
                path.move_to(coordinate(node, "x1")?, coordinate(node, "y1")?);
                path.line_to(coordinate(node, "x2")?, coordinate(node, "y2")?);
                self.shape(node, path.finish(), pixmap, transform, inherited)
            }
            "image" => self.image(node, pixmap, transform, inherited),
            "text" => text(node, pixmap, transform, inherited),
            "title" | "style" | "defs" | "linearGradient" | "clipPath" => Ok(()),
            other => Err(failed(format!("element <{other}> is not supported"))),
        }
    }

    fn group(&self, node: Node<'d, 'd>, pixmap: &mut Pixmap, transform: Transform, inherited: Inherited<'_>) -> Result<()> {
        let mut mask = None;
        if let Some(id) = node.attribute("clip-path").and_then(reference) {
            let clip = self.ids.get(id).and_then(|clip| clip.first_element_child());
            let clip = clip.ok_or_else(|| failed(format!("clip path {id} is not defined")))?;
            let mut made = Mask::new(pixmap.width(), pixmap.height()).ok_or_else(|| failed("a clip without pixels"))?;
            if let Some(path) = rectangle_path(rectangle(clip)?, 0.0) {
                made.fill_path(&path, FillRule::Winding, true, transform);
            }
            mask = Some(made);
        }
        let inner = Inherited {
            clip: mask.as_ref().or(inherited.clip),
            crisp: inherited.crisp || node.attribute("shape-rendering") == Some("crispEdges"),
            stroke: node.attribute("stroke").map(colour).transpose()?.or(inherited.stroke),
            stroke_width: number(node, "stroke-width")?.unwrap_or(inherited.stroke_width),
        };
        node.children().filter(Node::is_element).try_for_each(|child| self.element(child, pixmap, transform, inner))
    }

    fn shape(
        &self,
        node: Node<'d, 'd>,
        path: Option<Path>,
        pixmap: &mut Pixmap,
        transform: Transform,
        inherited: Inherited<'_>,
    ) -> Result<()> {
        let Some(path) = path else { return Ok(()) };
        let fill = node.attribute("fill").filter(|fill| *fill != "none" && node.tag_name().name() != "line");
        if let Some(fill) = fill {
            let paint = match reference(fill) {
                Some(id) => Paint { shader: self.shader(id, &path)?, anti_alias: !inherited.crisp, ..Paint::default() },
                None => solid(faded(colour(fill)?, number(node, "fill-opacity")?), inherited.crisp),
            };
            pixmap.fill_path(&path, &paint, FillRule::Winding, transform, inherited.clip);
        }
        if let Some(ink) = node.attribute("stroke").map(colour).transpose()?.or(inherited.stroke) {
            let paint = solid(faded(ink, number(node, "stroke-opacity")?), inherited.crisp);
            pixmap.stroke_path(&path, &paint, &stroke(node, inherited.stroke_width)?, transform, inherited.clip);
        }
        Ok(())
    }

    fn shader(&self, id: &'d str, path: &Path) -> Result<Shader<'_>> {
        if let Some(tile) = self.hatching.get(id) {
            let transform = Transform::from_rotate(45.0).pre_scale(self.scale.recip(), self.scale.recip());
            return Ok(Pattern::new(tile.as_ref(), SpreadMode::Repeat, FilterQuality::Bilinear, 1.0, transform));
        }
        let gradient = self.ids.get(id).filter(|node| node.has_tag_name("linearGradient"));
        let gradient = gradient.ok_or_else(|| failed(format!("paint {id} is not defined")))?;
        let mut stops = Vec::new();
        for stop in gradient.children().filter(|node| node.has_tag_name("stop")) {
            stops.push(GradientStop::new(coordinate(stop, "offset")?, colour(stop.attribute("stop-color").unwrap_or(""))?));
        }
        let b = path.bounds();
        let at = |x: &str, y: &str| -> Result<Point> {
            Ok(Point::from_xy(b.left() + coordinate(*gradient, x)? * b.width(), b.top() + coordinate(*gradient, y)? * b.height()))
        };
        LinearGradient::new(at("x1", "y1")?, at("x2", "y2")?, stops, SpreadMode::Pad, Transform::identity())
            .ok_or_else(|| failed("a gradient without a length"))
    }

    fn image(&self, node: Node<'d, 'd>, pixmap: &mut Pixmap, transform: Transform, inherited: Inherited<'_>) -> Result<()> {
        let Some(picture) = self.images.get(&node.id()) else { return Ok(()) };
        let [x, y, w, h] = rectangle(node)?;
        let sharp = node.attribute("image-rendering") == Some("optimizeSpeed");
        let quality = if sharp { FilterQuality::Nearest } else { FilterQuality::Bicubic };
        let transform = transform.pre_translate(x, y).pre_scale(w / picture.width() as f32, h / picture.height() as f32);
        let paint = PixmapPaint { quality, ..PixmapPaint::default() };
        pixmap.draw_pixmap(0, 0, picture.as_ref(), &paint, transform, inherited.clip);
        Ok(())
    }
}

fn stroke(node: Node<'_, '_>, width: f32) -> Result<Stroke> {
    let dash = match node.attribute("stroke-dasharray") {
        None => None,
        Some(text) => {
            let mut lengths = numbers(text).ok_or_else(|| failed(format!("dashes {text:?} are not numbers")))?;
            if lengths.len() % 2 == 1 {
                lengths.extend_from_within(..);
            }
            StrokeDash::new(lengths, 0.0)
        }
    };
    Ok(Stroke {
        width: number(node, "stroke-width")?.unwrap_or(width),
        line_cap: if node.attribute("stroke-linecap") == Some("round") { LineCap::Round } else { LineCap::Butt },
        line_join: if node.attribute("stroke-linejoin") == Some("round") { LineJoin::Round } else { LineJoin::Miter },
        dash,
        ..Stroke::default()
    })
}

/// A text and its `tspan`s, which are shifted by `dy` and set in their own size.
fn text(node: Node<'_, '_>, pixmap: &mut Pixmap, transform: Transform, inherited: Inherited<'_>) -> Result<()> {
    let size = coordinate(node, "font-size")?;
    let bold = node.attribute("font-weight") == Some("700");
    let (mut outline, mut advance, mut shift) = (PathBuilder::new(), 0.0, 0.0);
    for child in node.children() {
        let (own, run) = if child.is_text() {
            (size, child.text())
        } else if child.has_tag_name("tspan") {
            shift += coordinate(child, "dy")?;
            (number(child, "font-size")?.unwrap_or(size), child.text())
        } else {
            return Err(failed(format!("element <{}> in a text is not supported", child.tag_name().name())));
        };
        advance += glyphs::append(&mut outline, run.unwrap_or(""), own, bold, (advance, shift));
    }
    let Some(path) = outline.finish() else { return Ok(()) };
    let (x, y) = (coordinate(node, "x")?, coordinate(node, "y")?);
    let left = match node.attribute("text-anchor") {
        Some("middle") => x - advance / 2.0,
        Some("end") => x - advance,
        _ => x,
    };
    let mut transform = transform;
    if let Some(text) = node.attribute("transform") {
        let turn = text.strip_prefix("rotate(").and_then(|rest| numbers(rest.strip_suffix(')')?));
        let &[degrees, x, y] = turn.as_deref().unwrap_or_default() else {
            return Err(failed(format!("transform {text:?} is not supported")));
        };
        transform = transform.pre_concat(Transform::from_rotate_at(degrees, x, y));
    }
    let transform = transform.pre_translate(left, y);
    if let Some(halo) = node.attribute("stroke") {
        pixmap.stroke_path(&path, &solid(colour(halo)?, false), &stroke(node, 1.0)?, transform, inherited.clip);
    }
    let fill = colour(node.attribute("fill").unwrap_or("#000"))?;
    pixmap.fill_path(&path, &solid(fill, false), FillRule::Winding, transform, inherited.clip);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn painted(body: &str) -> Result<Pixmap> {
        let svg = format!("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"20\" height=\"20\">{body}</svg>");
        let document = Document::parse(&svg).expect("well-formed");
        let mut pixmap = Pixmap::new(20, 20).expect("pixels");
        Drawing::new(&document, 1.0)?.paint(&mut pixmap, 0)?;
        Ok(pixmap)
    }

    fn pixel(pixmap: &Pixmap, x: u32, y: u32) -> [u8; 4] {
        let c = pixmap.pixel(x, y).expect("inside").demultiply();
        [c.red(), c.green(), c.blue(), c.alpha()]
    }

    #[test]
    fn every_path_command_goes_where_it_says() {
        let square = painted("<path d=\"M5 5H15V15H5z\" fill=\"#f00\"/>").expect("painted");
        let relative = painted("<path d=\"M5 5h10v10h-10z\" fill=\"#f00\"/>").expect("painted");
        let lines = painted("<path d=\"M5 5L15 5L15 15l-10 0z\" fill=\"#ff0000\"/>").expect("painted");
        assert!(square == relative && square == lines);
        assert_eq!([pixel(&square, 5, 5), pixel(&square, 14, 14)], [[255, 0, 0, 255]; 2]);
        assert_eq!([pixel(&square, 4, 5), pixel(&square, 15, 5)], [[0; 4]; 2]);
    }

    #[test]
    fn two_half_circles_are_a_circle() {
        let arcs = painted("<path d=\"M4 10a6 6 0 1 0 12 0a6 6 0 1 0 -12 0z\" fill=\"#00f\"/>").expect("painted");
        let circle = painted("<circle cx=\"10\" cy=\"10\" r=\"6\" fill=\"#00f\"/>").expect("painted");
        let (mut sum, mut farthest) = (0, 0);
        for (a, b) in arcs.data().iter().zip(circle.data()) {
            sum += u32::from(a.abs_diff(*b));
            farthest = farthest.max(a.abs_diff(*b));
        }
        // Cubic and quadratic curves may round otherwise by a sixteenth of a pixel of the edge.
        let all: u32 = circle.data().iter().map(|x| u32::from(*x)).sum();
        assert!(farthest <= 16 && sum * 50 < all, "{farthest}, {sum} of {all}");
    }

    #[test]
    fn what_the_writer_does_not_write_is_an_error() {
        for body in [
            "<ellipse rx=\"3\" ry=\"2\"/>",
            "<path d=\"M1 1C2 2 3 3 4 4\" fill=\"#000\"/>",
            "<path d=\"M1 1a3 2 0 1 0 6 0z\" fill=\"#000\"/>",
            "<rect width=\"3\" height=\"3\" fill=\"red\"/>",
            "<rect width=\"3\" height=\"3\" fill=\"url(#missing)\"/>",
            "<g clip-path=\"url(#missing)\"/>",
            "<text font-size=\"5\" transform=\"scale(2)\">a</text>",
            "<line x1=\"zero\" stroke=\"#000\"/>",
            "<image href=\"picture.png\" width=\"3\" height=\"3\"/>",
        ] {
            assert!(matches!(painted(body), Err(FigureError::Png { .. })), "{body}");
        }
    }

    #[test]
    fn a_clip_hides_what_is_outside() {
        let body = "<clipPath id=\"c\"><rect x=\"0\" y=\"0\" width=\"10\" height=\"20\"/></clipPath>\
                    <g clip-path=\"url(#c)\"><rect width=\"20\" height=\"20\" fill=\"#0f0\"/></g>";
        let pixmap = painted(body).expect("painted");
        assert_eq!([pixel(&pixmap, 9, 5), pixel(&pixmap, 10, 5)], [[0, 255, 0, 255], [0; 4]]);
    }
}
