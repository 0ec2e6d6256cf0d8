//! Pixels: the picture inside a large heat map, and whole drawings as PNG with fonts of our own.

use super::FigureError;
use super::colour_map::{ColourMap, STEPS};
use super::paint::Drawing;
use std::io::Write;

/// Pixels of a PNG per unit of a drawing.
pub(crate) const PIXELS_PER_UNIT: f64 = 2.0;

/// Largest number of pixels drawn in one piece; larger drawings are rasterised in bands of rows, which needs less memory.
const WHOLE: u64 = 1 << 20;
const BAND: u32 = 256;

/// The palette index of hidden cells (transparent: the hatching below shows), and of NaN.
pub(crate) const HIDDEN: u8 = STEPS as u8;
pub(crate) const NOT_A_NUMBER: u8 = STEPS as u8 + 1;

/// The colour of NaN in a picture.
const NAN_COLOUR: [u8; 3] = [0xc4, 0x00, 0x6a];

/// A PNG with one indexed pixel per cell; indices are steps of the map, [`HIDDEN`] or [`NOT_A_NUMBER`].
pub(crate) fn indexed_png(map: ColourMap, cells: &[u8], rows: usize, cols: usize) -> Result<Vec<u8>, FigureError> {
    let size = |n: usize| u32::try_from(n).map_err(|_| FigureError::TooLarge { rows, cols });
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, size(cols)?, size(rows)?);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::High);
    let mut palette: Vec<u8> = (0..STEPS as u8).flat_map(|s| map.step_colour(s)).collect();
    palette.extend([0, 0, 0]);
    palette.extend(NAN_COLOUR);
    encoder.set_palette(palette);
    let mut alpha = vec![255; STEPS];
    alpha.extend([0, 255]);
    encoder.set_trns(alpha);
    let written = encoder.write_header().and_then(|mut w| {
        w.write_image_data(cells)?;
        w.finish()
    });
    written.map_err(|e| FigureError::Png { reason: e.to_string() })?;
    Ok(bytes)
}

/// Draw an SVG as PNG. No font of the system is looked at: the same bytes everywhere.
pub(crate) fn render(svg: &str) -> Result<Vec<u8>, FigureError> {
    let document = roxmltree::Document::parse(svg).map_err(|e| FigureError::Png { reason: e.to_string() })?;
    let drawing = Drawing::new(&document, PIXELS_PER_UNIT as f32)?;
    let (across, down) = drawing.size()?;
    let pixels = |x: f32| (f64::from(x) * PIXELS_PER_UNIT).ceil() as u32;
    let (width, height) = (pixels(across), pixels(down));
    let empty = || FigureError::Png { reason: format!("a picture of {across} x {down} has no pixels") };
    let band = |first: u32, rows: u32| {
        let mut pixmap = tiny_skia::Pixmap::new(width, rows).ok_or_else(empty)?;
        drawing.paint(&mut pixmap, first)?;
        Ok(pixmap)
    };
    if u64::from(width) * u64::from(height) <= WHOLE {
        return band(0, height)?.encode_png().map_err(|e| FigureError::Png { reason: e.to_string() });
    }
    let failed = |e: &dyn std::fmt::Display| FigureError::Png { reason: e.to_string() };
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgba);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(|e| failed(&e))?;
    let mut stream = writer.stream_writer().map_err(|e| failed(&e))?;
    for first in (0..height).step_by(BAND as usize) {
        let pixmap = band(first, BAND.min(height - first))?;
        for pixel in pixmap.pixels() {
            let colour = pixel.demultiply();
            stream.write_all(&[colour.red(), colour.green(), colour.blue(), colour.alpha()]).map_err(|e| failed(&e))?;
        }
    }
    stream.finish().map_err(|e| failed(&e))?;
    writer.finish().map_err(|e| failed(&e))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pictures_are_drawn_band_by_band_without_a_seam() {
        // Two circles, one of them over the end of a band; large enough for bands.
        let picture = |width: u32| {
            format!(
                r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="300"><rect width="{width}" height="300" fill="#fff"/>
                <circle cx="100" cy="127.5" r="90.3" fill="#123456"/><circle cx="150" cy="250" r="40" fill="#abcdef" fill-opacity="0.5"/></svg>"##
            )
        };
        let decode = |bytes: &[u8]| {
            let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().expect("a picture");
            let mut pixels = vec![0; reader.output_buffer_size().expect("a size")];
            let info = reader.next_frame(&mut pixels).expect("pixels");
            (info.width as usize, pixels)
        };
        let (narrow, wide) = (picture(300), picture(4000));
        const { assert!(4 * 4000 * 300 > WHOLE && 4 * 300 * 300 <= WHOLE) };
        let ((narrow, whole), (wide, banded)) = (decode(&render(&narrow).expect("whole")), decode(&render(&wide).expect("in bands")));
        // Where an edge goes through a pixel, the share that it covers may round otherwise; where there is no edge, nothing may differ.
        let pixel = |x: usize, y: usize| &whole[4 * (y * narrow + x)..][..4];
        let (mut others, height) = (0, whole.len() / (4 * narrow));
        for y in 0..height {
            for x in 0..narrow {
                if *pixel(x, y) == banded[4 * (y * wide + x)..][..4] {
                    continue;
                }
                others += 1;
                let near = |i: usize, most: usize| i.saturating_sub(1)..=(i + 1).min(most - 1);
                let edge = near(y, height).any(|v| near(x, narrow).any(|u| pixel(u, v) != pixel(x, y)));
                assert!(edge, "row {y}, column {x} differs away from any edge");
            }
        }
        assert!(others * 1000 < narrow * height, "{others} pixels differ");
    }
}
