//! PNG images, and the pixels that a model reads of them: resized as Pillow does, scaled to 0 to 1, normalised.
//!
//! ```text
//! resize     out[x] = sum over i of f((i + 0.5 - centre) / stretch) in[i], normalised; rows first, then columns, rounded to 8 bits
//! pixel      (value / 255 - mean) / deviation, by channel
//! ```

use crate::error::{Error, Result};
use ndarray::{Array3, ArrayView3};
use regard_files::limits::{IMAGE_BYTES, IMAGE_PIXELS};
use serde_json::Value;
use std::io::Cursor;
use std::path::Path;

/// An image in RGB, 8 bits each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    height: usize,
    width: usize,
    rgb: Vec<u8>,
}

/// How a resized pixel is made of its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filter {
    Bilinear,
    Bicubic,
    Lanczos,
}

impl Filter {
    /// Half of its width.
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn at(self, x: f64) -> f64 {
        let x = x.abs();
        let sinc = |x: f64| if x == 0.0 { 1.0 } else { (std::f64::consts::PI * x).sin() / (std::f64::consts::PI * x) };
        match self {
            Self::Bilinear => (1.0 - x).max(0.0),
            Self::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            Self::Bicubic if x < 2.0 => -0.5 * (((x - 5.0) * x + 8.0) * x - 4.0),
            Self::Lanczos if x < 3.0 => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

/// What a model's `preprocessor_config.json` says of its pixels.
#[derive(Debug, Clone, PartialEq)]
pub struct Pixels {
    mean: [f32; 3],
    deviation: [f32; 3],
    filter: Filter,
}

impl Default for Pixels {
    fn default() -> Self {
        Self { mean: [0.5; 3], deviation: [0.5; 3], filter: Filter::Bilinear }
    }
}

impl Pixels {
    /// Of the settings; what they do not have is ViT's.
    pub(crate) fn of_settings(settings: &Value) -> Result<Self> {
        let refused = |name: &str, reason: &str| {
            let (name, value) = (name.to_owned(), settings[name].to_string());
            Error::Setting { name, value, reason: reason.to_owned() }
        };
        let numbers = |name: &'static str| {
            let wrong = || refused(name, "three finite numbers are needed, and deviations are positive");
            let Some(list) = settings[name].as_array() else { return Ok([0.5; 3]) };
            let list: Vec<f32> = list.iter().filter_map(|x| x.as_f64().map(|x| x as f32)).collect();
            let list: [f32; 3] = list.try_into().map_err(|_| wrong())?;
            let possible = |x: &f32| x.is_finite() && (name == "image_mean" || *x > 0.0);
            if list.iter().all(possible) { Ok(list) } else { Err(wrong()) }
        };
        let filter = match settings["resample"].as_u64() {
            None | Some(2) => Filter::Bilinear,
            Some(3) => Filter::Bicubic,
            Some(1) => Filter::Lanczos,
            Some(_) => return Err(refused("resample", "1, 2 and 3 can be run: Lanczos, bilinear and bicubic")),
        };
        let plain = settings["do_normalize"] == false;
        let (mean, deviation) = if plain { ([0.0; 3], [1.0; 3]) } else { (numbers("image_mean")?, numbers("image_std")?) };
        Ok(Self { mean, deviation, filter })
    }

    /// The pixels of an image as a model reads them, `[channels, side, side]`.
    pub(crate) fn of(&self, image: &Image, channels: usize, side: usize) -> Result<Array3<f32>> {
        if channels != 3 {
            let reason = format!("the model reads {channels} channels; only images of 3 can be given as files");
            return Err(Error::Tokens { reason });
        }
        let resized = image.resized(side, self.filter);
        let pixel = |(channel, y, x): (usize, usize, usize)| {
            let value = f32::from(resized.rgb[3 * (y * side + x) + channel]) / 255.0;
            (value - self.mean[channel]) / self.deviation[channel]
        };
        Ok(Array3::from_shape_fn((3, side, side), pixel))
    }
}

impl Image {
    /// Read a PNG file.
    ///
    /// # Errors
    /// When it cannot be read, is no PNG file, or is too large.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = regard_files::read_bytes(path, IMAGE_BYTES.max).map_err(|error| Error::Tokens { reason: error.to_string() })?;
        Self::decode(&bytes).map_err(|reason| Error::damaged(path, reason))
    }

    /// The image in the bytes of a PNG file.
    ///
    /// # Errors
    /// With what is wrong.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, String> {
        let limits = png::Limits { bytes: 8 * IMAGE_PIXELS.max as usize };
        let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
        decoder.set_transformations(png::Transformations::normalize_to_color8());
        let damaged = |error: png::DecodingError| format!("it is not a PNG image: {error}");
        let mut reader = decoder.read_info().map_err(damaged)?;
        let (width, height) = (reader.info().width as usize, reader.info().height as usize);
        IMAGE_PIXELS.check("pixels", width.saturating_mul(height)).map_err(|error| error.to_string())?;
        let size = reader.output_buffer_size().ok_or("it has too many pixels")?;
        let mut pixels = vec![0u8; size];
        let (colours, _) = reader.output_color_type();
        reader.next_frame(&mut pixels).map_err(damaged)?;
        let rgb: Vec<u8> = match colours.samples() {
            // Grey, with and without transparency, which does not count.
            samples @ (1 | 2) => pixels.chunks_exact(samples).flat_map(|pixel| [pixel[0]; 3]).collect(),
            samples => pixels.chunks_exact(samples).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect(),
        };
        if rgb.len() != 3 * width * height || rgb.is_empty() {
            return Err("it has fewer pixels than its header says".to_owned());
        }
        Ok(Self { height, width, rgb })
    }

    /// Its height and width.
    pub fn size(&self) -> [usize; 2] {
        [self.height, self.width]
    }

    /// How bright it is, `side x side`, from 0 to 1.
    pub fn brightness(&self, side: usize) -> Vec<f64> {
        let luma = |p: &[u8]| (0.299 * f64::from(p[0]) + 0.587 * f64::from(p[1]) + 0.114 * f64::from(p[2])) / 255.0;
        self.resized(side, Filter::Bilinear).rgb.chunks_exact(3).map(luma).collect()
    }

    fn resized(&self, side: usize, filter: Filter) -> Self {
        let view = |rgb: &'_ [u8], height: usize, width: usize| {
            ArrayView3::from_shape((height, width, 3), rgb).expect("three numbers per pixel").to_owned()
        };
        let wide = resample(&view(&self.rgb, self.height, self.width), side, filter);
        // Columns as rows, and back.
        let turned = resample(&wide.permuted_axes([1, 0, 2]), side, filter);
        Self { height: side, width: side, rgb: turned.permuted_axes([1, 0, 2]).iter().copied().collect() }
    }
}

/// Rows of `side` pixels, each a sum over neighbours.
fn resample(image: &Array3<u8>, side: usize, filter: Filter) -> Array3<u8> {
    let (rows, width, _) = image.dim();
    if width == side {
        return image.to_owned();
    }
    let scale = width as f64 / side as f64;
    let stretch = scale.max(1.0);
    let mut out = Array3::zeros((rows, side, 3));
    for x in 0..side {
        let (centre, support) = ((x as f64 + 0.5) * scale, filter.support() * stretch);
        let first = (centre - support + 0.5).max(0.0) as usize;
        let end = ((centre + support + 0.5) as usize).min(width);
        let weights: Vec<f64> = (first..end).map(|i| filter.at((i as f64 - centre + 0.5) / stretch)).collect();
        let sum: f64 = weights.iter().sum();
        for row in 0..rows {
            for channel in 0..3 {
                let value: f64 = weights.iter().enumerate().map(|(i, w)| w * f64::from(image[[row, first + i, channel]])).sum();
                out[[row, x, channel]] = (value / sum + 0.5).floor().clamp(0.0, 255.0) as u8;
            }
        }
    }
    out
}
