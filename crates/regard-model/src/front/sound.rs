//! Sound: WAV files, their sampling rate, and the log-mel frames that Whisper reads.

use crate::error::{Error, Result};
use crate::formats::Cursor;
use ndarray::Array2;
use rayon::prelude::*;
use regard_files::limits::SOUND_BYTES;
use std::f64::consts::PI;
use std::path::Path;

/// Samples a second of all models.
pub const RATE: usize = 16_000;
/// Samples of a window of the Fourier transform, and from one to the next.
const WINDOW: usize = 400;
const HOP: usize = 160;
/// Seconds of two windows, which one row of an encoder is for.
pub const SECONDS_PER_ROW: f64 = 2.0 * HOP as f64 / RATE as f64;
/// Sampling rates of files.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=768_000;
/// Zero crossings of the filter of a new sampling rate, on each side.
const CROSSINGS: f64 = 24.0;

/// Samples of one channel, from -1 to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Sound {
    /// In order.
    pub samples: Vec<f32>,
    /// Samples a second.
    pub rate: u32,
}

/// How a WAV file stores a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Coding {
    Unsigned8,
    Signed(usize),
    F32,
    F64,
}

impl Coding {
    fn bytes(self) -> usize {
        match self {
            Self::Unsigned8 => 1,
            Self::Signed(bytes) => bytes,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    fn sample(self, bytes: &[u8]) -> f64 {
        match self {
            Self::Unsigned8 => (f64::from(bytes[0]) - 128.0) / 128.0,
            Self::Signed(count) => {
                // The highest bytes of 32 bits.
                let mut wide = [0u8; 4];
                wide[4 - count..].copy_from_slice(bytes);
                f64::from(i32::from_le_bytes(wide)) / 2_147_483_648.0
            }
            Self::F32 => f64::from(f32::from_le_bytes(bytes.try_into().expect("four bytes"))),
            Self::F64 => f64::from_le_bytes(bytes.try_into().expect("eight bytes")),
        }
    }
}

/// The `fmt ` chunk.
#[derive(Debug, Clone, Copy)]
struct Format {
    coding: Coding,
    channels: usize,
    rate: u32,
}

impl Format {
    fn read(bytes: &[u8]) -> std::result::Result<Self, String> {
        let short = || format!("its format has {} bytes; at least 16 are needed", bytes.len());
        let two = |at: usize| bytes.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]])).ok_or_else(short);
        let (kind, channels, bits, frame) = (two(0)?, two(2)?, two(14)?, two(12)?);
        let rate = u32::from(two(4)?) | u32::from(two(6)?) << 16;
        // An extensible format has its kind in the first two bytes of an identifier.
        let kind = if kind == 0xfffe { two(24)? } else { kind };
        let coding = match (kind, bits) {
            (1, 8) => Coding::Unsigned8,
            (1, 16 | 24 | 32) => Coding::Signed(usize::from(bits) / 8),
            (3, 32) => Coding::F32,
            (3, 64) => Coding::F64,
            _ => {
                return Err(format!(
                    "its samples are of kind {kind} with {bits} bits; 8, 16, 24 and 32 bits PCM, 32 and 64 bits float can be read"
                ));
            }
        };
        if channels == 0 || channels > 64 {
            return Err(format!("it has {channels} channels; 1 to 64 can be read"));
        }
        if usize::from(frame) != coding.bytes() * usize::from(channels) {
            return Err(format!("{channels} channels of {bits} bits and frames of {frame} bytes contradict each other; convert it again"));
        }
        if !RATES.contains(&rate) {
            return Err(format!("it has {rate} samples a second; {} to {} can be read", RATES.start(), RATES.end()));
        }
        Ok(Self { coding, channels: usize::from(channels), rate })
    }
}

impl Sound {
    /// A WAV file: PCM of 8, 16, 24 or 32 bits, or float; channels are averaged.
    ///
    /// # Errors
    /// [`Error::Files`] and [`Error::Damaged`].
    pub fn read(path: &Path) -> Result<Self> {
        Self::of_wav(&crate::disk::read(path, SOUND_BYTES)?).map_err(|reason| Error::damaged(path, reason))
    }

    /// The bytes of a WAV file.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn of_wav(bytes: &[u8]) -> std::result::Result<Self, String> {
        let mut cursor = Cursor::new(bytes);
        let (riff, length) = (cursor.array::<4>() == Some(*b"RIFF"), cursor.u32());
        if !riff || cursor.array::<4>() != Some(*b"WAVE") {
            return Err("it is no WAV file (RIFF, WAVE): convert it, as with `ffmpeg -i FILE -ar 16000 sound.wav`".to_owned());
        }
        let mut format = None;
        while let (Some(name), Some(size)) = (cursor.array::<4>(), cursor.u32()) {
            let size = size as usize;
            if name == *b"data" {
                let format: Format = format.ok_or("its samples come before their format")?;
                // A stream that was written without an end has all ones, or zero, as its sizes.
                let ended = length.is_some_and(|length| length as usize == bytes.len() - 8);
                let open = size >= u32::MAX as usize - 255 || (size == 0 && !ended);
                let size = if open { cursor.left() } else { size };
                let Some(samples) = cursor.take(size) else {
                    return Err(format!("it is cut short: {} of {size} bytes of samples are there", cursor.left()));
                };
                return Self::of_samples(samples, format);
            }
            let Some(chunk) = cursor.take(size) else { break };
            if name == *b"fmt " {
                format = Some(Format::read(chunk)?);
            }
            // Chunks begin at even places.
            cursor.take(size % 2);
        }
        Err("it has no samples".to_owned())
    }

    fn of_samples(bytes: &[u8], format: Format) -> std::result::Result<Self, String> {
        let size = format.coding.bytes();
        let of_all = |frame: &[u8]| {
            let sum: f64 = frame.chunks_exact(size).map(|sample| format.coding.sample(sample)).sum();
            (sum / format.channels as f64) as f32
        };
        let samples: Vec<f32> = bytes.chunks_exact(size * format.channels).map(of_all).collect();
        if samples.is_empty() {
            return Err("it has no samples".to_owned());
        }
        match samples.iter().position(|x| !x.is_finite()) {
            Some(place) => Err(format!("its sample {place} is {}; all must be finite", samples[place])),
            None => Ok(Self { samples, rate: format.rate }),
        }
    }

    /// Number of samples at another sampling rate.
    fn count_at(&self, rate: u32) -> usize {
        (self.samples.len() as u64 * u64::from(rate)).div_ceil(u64::from(self.rate)) as usize
    }

    /// How long it is.
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.rate)
    }

    /// The same at another sampling rate, by a sinc with a raised cosine as window.
    #[must_use]
    pub fn resampled(&self, rate: u32) -> Self {
        if rate == self.rate {
            return self.clone();
        }
        let ratio = f64::from(self.rate) / f64::from(rate);
        // Below the lower of the two limits.
        let cut = 0.97 * (1.0 / ratio).min(1.0);
        let reach = CROSSINGS / cut;
        let at = |place: usize| {
            let centre = place as f64 * ratio;
            let (first, last) = ((centre - reach).ceil().max(0.0) as usize, (centre + reach).floor() as usize);
            let near = self.samples.get(first..=last.min(self.samples.len() - 1)).unwrap_or_default();
            let weight = |number: usize| {
                let distance = (first + number) as f64 - centre;
                let sinc = if distance == 0.0 { 1.0 } else { (PI * cut * distance).sin() / (PI * cut * distance) };
                cut * sinc * 0.5 * (1.0 + (PI * distance / reach).cos())
            };
            near.iter().enumerate().map(|(number, x)| weight(number) * f64::from(*x)).sum::<f64>() as f32
        };
        Self { samples: (0..self.count_at(rate)).into_par_iter().map(at).collect(), rate }
    }

    /// The features of Whisper, `[mels, frames]`, for sound that is filled up with silence.
    ///
    /// # Errors
    /// When it is longer than `frames` of 10 ms.
    pub fn log_mel(&self, mels: usize, frames: usize) -> Result<Array2<f32>> {
        if self.count_at(RATE as u32) > frames * HOP {
            let (seconds, most) = (self.seconds(), (frames * HOP) as f64 / RATE as f64);
            let reason = format!("the sound has {seconds:.1} seconds; the model reads {most:.0}: cut it into shorter files");
            return Err(Error::Tokens { reason });
        }
        let (sound, filters) = (self.resampled(RATE as u32), filters(mels));
        let waves: Vec<(f64, f64)> = (0..WINDOW).map(|i| (2.0 * PI * i as f64 / WINDOW as f64).sin_cos()).collect();
        let window: Vec<f64> = (0..WINDOW).map(|i| 0.5 - 0.5 * (2.0 * PI * i as f64 / WINDOW as f64).cos()).collect();
        let columns: Vec<Vec<f64>> =
            (0..frames).into_par_iter().map(|frame| log_frame((&sound.samples, frames * HOP), frame, &window, &waves, &filters)).collect();
        let largest = columns.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
        Ok(Array2::from_shape_fn((mels, frames), |(mel, frame)| ((columns[frame][mel].max(largest - 8.0) + 4.0) / 4.0) as f32))
    }
}

/// Sample `place` of sound that is followed by silence up to `len` samples and mirrored at both ends, as PyTorch's `stft` with `center`
/// has it.
fn mirrored((samples, len): (&[f32], usize), place: i64) -> f64 {
    let place = place.unsigned_abs() as usize;
    let place = if place < len { place } else { (2 * len - 2).saturating_sub(place) };
    samples.get(place).copied().map_or(0.0, f64::from)
}

/// Logarithms, to the base of ten, of the power in each filter.
fn log_frame(samples: (&[f32], usize), frame: usize, window: &[f64], waves: &[(f64, f64)], filters: &[Vec<f64>]) -> Vec<f64> {
    let start = (frame * HOP) as i64 - (WINDOW / 2) as i64;
    let windowed: Vec<f64> = (start..).zip(window).map(|(place, weight)| mirrored(samples, place) * weight).collect();
    if windowed.iter().all(|x| *x == 0.0) {
        return vec![-10.0; filters.len()];
    }
    let power = |bin: usize| {
        let (mut re, mut im) = (0.0, 0.0);
        for (i, x) in windowed.iter().enumerate() {
            let (sin, cos) = waves[bin * i % WINDOW];
            re += x * cos;
            im -= x * sin;
        }
        re * re + im * im
    };
    let power: Vec<f64> = (0..=WINDOW / 2).map(power).collect();
    let sum = |filter: &Vec<f64>| filter.iter().zip(&power).map(|(f, p)| f * p).sum::<f64>();
    filters.iter().map(|filter| sum(filter).max(1e-10).log10()).collect()
}

/// Triangles on Slaney's mel scale from 0 to 8 kHz, each of area one: `[mels][bins]`.
fn filters(mels: usize) -> Vec<Vec<f64>> {
    // Linear up to 1 kHz, then logarithmic.
    const STEP: f64 = 200.0 / 3.0;
    let log_step = 6.4f64.ln() / 27.0;
    let to_mel = |hertz: f64| if hertz < 1000.0 { hertz / STEP } else { 15.0 + (hertz / 1000.0).ln() / log_step };
    let to_hertz = |mel: f64| if mel < 15.0 { mel * STEP } else { 1000.0 * ((mel - 15.0) * log_step).exp() };
    let most = to_mel(RATE as f64 / 2.0);
    let edges: Vec<f64> = (0..mels + 2).map(|i| to_hertz(most * i as f64 / (mels + 1) as f64)).collect();
    let filter = |edge: &[f64]| {
        let at = |bin: usize| {
            let hertz = bin as f64 * RATE as f64 / WINDOW as f64;
            let (up, down) = ((hertz - edge[0]) / (edge[1] - edge[0]), (edge[2] - hertz) / (edge[2] - edge[1]));
            up.min(down).max(0.0) * 2.0 / (edge[2] - edge[0])
        };
        (0..=WINDOW / 2).map(at).collect()
    };
    edges.windows(3).map(filter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with these chunks.
    fn riff(chunks: &[(&[u8; 4], Vec<u8>)]) -> Vec<u8> {
        let mut body = b"WAVE".to_vec();
        for (name, bytes) in chunks {
            body.extend_from_slice(*name);
            body.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            body.extend_from_slice(bytes);
            body.resize(body.len().next_multiple_of(2), 0);
        }
        let mut file = b"RIFF".to_vec();
        file.extend_from_slice(&(body.len() as u32).to_le_bytes());
        file.extend(body);
        file
    }

    fn format(kind: u16, channels: u16, rate: u32, bits: u16) -> Vec<u8> {
        let mut bytes = [kind.to_le_bytes(), channels.to_le_bytes()].concat();
        bytes.extend(rate.to_le_bytes());
        bytes.extend((rate * u32::from(channels) * u32::from(bits) / 8).to_le_bytes());
        bytes.extend([channels * bits / 8, bits].map(u16::to_le_bytes).concat());
        bytes
    }

    fn wav(kind: u16, channels: u16, bits: u16, data: &[u8]) -> Vec<u8> {
        riff(&[(b"LIST", vec![1, 2, 3]), (b"fmt ", format(kind, channels, 16_000, bits)), (b"data", data.to_vec())])
    }

    #[test]
    fn samples_of_every_coding_are_the_same_numbers() {
        let values = [-1.0, -0.5, 0.0, 0.5];
        let integers = |bytes: usize| -> Vec<u8> {
            values.iter().flat_map(|x| ((x * 2_147_483_648.0) as i32).to_le_bytes()[4 - bytes..].to_vec()).collect()
        };
        let codings = [
            (1, 8, values.iter().map(|x| (x * 128.0 + 128.0) as u8).collect()),
            (1, 16, integers(2)),
            (1, 24, integers(3)),
            (1, 32, integers(4)),
            (3, 32, values.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect()),
            (3, 64, values.iter().flat_map(|x| f64::to_le_bytes(*x)).collect::<Vec<u8>>()),
        ];
        for (kind, bits, data) in codings {
            let mono = Sound::of_wav(&wav(kind, 1, bits, &data)).expect("mono");
            assert_eq!(mono.samples, values.map(|x| x as f32), "{kind} {bits}");
            let stereo = Sound::of_wav(&wav(kind, 2, bits, &data)).expect("stereo");
            assert_eq!(stereo.samples, [-0.75, 0.25], "{kind} {bits}: the mean of both channels");
        }
        // Extensible: the kind is in an identifier.
        let mut extensible = format(0xfffe, 1, 16_000, 16);
        extensible.extend([22, 0, 16, 0, 4, 0, 0, 0, 1, 0]);
        extensible.extend([0; 14]);
        let file = riff(&[(b"fmt ", extensible), (b"data", integers(2))]);
        assert_eq!(Sound::of_wav(&file).expect("extensible").samples.len(), 4);
    }

    #[test]
    fn damaged_files_are_refused_with_the_reason() {
        let good = wav(1, 1, 16, &[0; 8]);
        let cases: [(&str, Vec<u8>, &str); 12] = [
            ("empty", Vec::new(), "no WAV file"),
            ("other", b"OggS and more of it".to_vec(), "no WAV file"),
            ("cut", good[..good.len() - 3].to_vec(), "cut short: 5 of 8"),
            ("no samples", wav(1, 1, 16, &[]), "no samples"),
            ("less than one", wav(1, 2, 16, &[0; 3]), "no samples"),
            ("no data", riff(&[(b"fmt ", format(1, 1, 16_000, 16))]), "no samples"),
            ("no format", riff(&[(b"data", vec![0; 8])]), "before their format"),
            ("short format", riff(&[(b"fmt ", vec![1, 0]), (b"data", vec![0; 8])]), "at least 16"),
            ("no channels", riff(&[(b"fmt ", format(1, 0, 16_000, 16)), (b"data", vec![0; 8])]), "0 channels"),
            ("no rate", riff(&[(b"fmt ", format(1, 1, 0, 16)), (b"data", vec![0; 8])]), "0 samples a second"),
            ("coded", wav(85, 1, 16, &[0; 8]), "kind 85"),
            ("NaN", wav(3, 1, 32, &f32::NAN.to_le_bytes()), "sample 0 is NaN"),
        ];
        for (name, bytes, reason) in cases {
            let error = Sound::of_wav(&bytes).expect_err(name);
            assert!(error.contains(reason), "{name}: {error}");
        }
        // No prefix of a file makes a panic.
        for len in 0..good.len() {
            assert!(Sound::of_wav(&good[..len]).is_err(), "{len}");
        }
        // A stream without its length has all that follows.
        let mut open = wav(1, 1, 16, &[0, 64, 0, 192]);
        let place = open.len() - 8;
        open[place..place + 4].copy_from_slice(&[255; 4]);
        assert_eq!(Sound::of_wav(&open).expect("open").samples, [0.5, -0.5]);
    }

    #[test]
    fn another_sampling_rate_keeps_a_tone() {
        for rate in [8_000u32, 22_050, 44_100, 48_000] {
            let tone = |rate: u32, i: usize| (2.0 * PI * 440.0 * i as f64 / f64::from(rate)).sin() as f32;
            let sound = Sound { samples: (0..rate as usize).map(|i| tone(rate, i)).collect(), rate };
            let other = sound.resampled(16_000);
            assert_eq!(other.samples.len(), 16_000, "{rate}");
            for i in 1000..15_000 {
                assert!((other.samples[i] - tone(16_000, i)).abs() < 2e-3, "{rate}: sample {i}");
            }
        }
        // A tone above the new limit is gone.
        let high =
            Sound { samples: (0..48_000).map(|i| (2.0 * PI * 15_000.0 * f64::from(i) / 48_000.0).sin() as f32).collect(), rate: 48_000 };
        assert!(high.resampled(16_000).samples[1000..15_000].iter().all(|x| x.abs() < 5e-3));
    }

    #[test]
    fn a_tone_is_in_the_filter_around_it_and_silence_is_flat() {
        let tone = |hertz: f64| {
            let at = |i: i32| (2.0 * PI * hertz * f64::from(i) / 16_000.0).sin() as f32;
            Sound { samples: (0..8000).map(at).collect(), rate: 16_000 }
        };
        // Mels 15 and 35.2 of 45.245, of 81 steps.
        for (hertz, filters) in [(1000.0, 25..=27), (4000.0, 61..=62)] {
            let features = tone(hertz).log_mel(80, 100).expect("features");
            let column = features.column(20);
            let best = (0..80).max_by(|a, b| column[*a].total_cmp(&column[*b])).expect("filters");
            assert!(filters.contains(&best), "{hertz}: {best}");
        }
        let silence = Sound { samples: vec![0.0; 1600], rate: 16_000 }.log_mel(80, 100).expect("features");
        assert!(silence.iter().all(|x| *x == -1.5), "ten to the minus ten");
        let error = tone(1000.0).log_mel(80, 10).expect_err("too long").to_string();
        assert!(error.contains("0.5 seconds"), "{error}");
    }
}
