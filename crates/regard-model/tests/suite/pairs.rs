//! Encoder-decoders and models of images against transformers (`tests/golden/make.py pairs`).

use crate::golden::{folder, worst};
use ndarray::{ArrayView2, ArrayView3};
use regard_model::front::image::Image;
use regard_model::{Edits, Error, Generation, Input, Model, Run, Sources};
use regard_nn::tensors::{SafetensorsFile, Source};

const PAIRS: [&str; 5] = ["t5", "t5_gated", "bart", "marian", "whisper"];

struct Pair {
    model: Model,
    file: SafetensorsFile,
}

impl Pair {
    fn load(name: &str) -> Self {
        let file = SafetensorsFile::read(&folder(name).join("pair.safetensors")).expect(name);
        Self { model: Model::load(folder(name)).expect(name), file }
    }

    fn numbers(&self, name: &str) -> Vec<f32> {
        let tensor = self.file.tensor(name).expect(name);
        let mut numbers = vec![0f32; tensor.numbers.len()];
        tensor.numbers.widen(0..numbers.len(), &mut numbers);
        numbers
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        self.numbers(name).into_iter().map(|x| x as u32).collect()
    }

    /// What the encoder makes of the golden input.
    fn read(&self, edits: &str) -> Run {
        let (edits, nothing) = (Edits::parse(edits).expect("edits"), Sources::default());
        if self.model.encoder().expect("an encoder").front_kind().is_none() {
            return self.model.read(Input::Ids(&self.ids("input_ids")), &edits, &nothing).expect("read");
        }
        let features = self.numbers("input_features");
        let features = ArrayView2::from_shape((8, 60), &features).expect("features");
        self.model.read(Input::Features(features), &edits, &nothing).expect("read")
    }

    fn decoder(&self) -> Model {
        self.model.reading(&self.read("")).expect("a decoder")
    }
}

fn run(model: &Model, ids: &[u32], edits: &str) -> Run {
    model.run(ids, &Edits::parse(edits).expect(edits), &Sources::default()).expect(edits)
}

#[test]
fn encoders_decoders_and_their_maps_are_those_of_transformers() {
    for name in PAIRS {
        let pair = Pair::load(name);
        let read = pair.read("");
        let error = worst(read.hidden().iter().copied(), &pair.numbers("hidden"));
        assert!(error < 2e-4, "{name}: the encoder differs by {error}");
        let run = run(&pair.model.reading(&read).expect(name), &pair.ids("written"), "");
        let error = worst(run.logits().expect(name), &pair.numbers("logits"));
        // Scores of the gated T5 are large: transformers in f32 is itself 7e-3 from f64 in its logits (up to 110), 3e-4 in weights.
        let gated = name == "t5_gated";
        assert!(error < if gated { 2e-2 } else { 1e-3 }, "{name}: logits differ by {error}");
        let cross = run.cross().expect("cross-attention");
        assert_eq!((cross.len(), cross.keys()), (12, read.len()), "{name}");
        for (part, run) in [("encoder", run.encoder().expect("what was read")), ("decoder", &run), ("cross", &cross)] {
            let weights = run.weights(1, 1).expect(part);
            let error = worst(weights.iter().copied(), &pair.numbers(part));
            assert!(error < if gated && part == "decoder" { 1e-3 } else { 1e-4 }, "{name}: {part} weights differ by {error}");
            // Other views of the same weights.
            let map = run.heat_map(1, 1, 1000, 1000).expect(part);
            assert!(worst(map.mean, weights.as_slice().expect("standard")) < 1e-6, "{name}: {part}");
            let (stats, _) = run.layer_statistics(1, regard::StatsOptions::default()).expect(part);
            for (row, weights) in weights.outer_iter().enumerate() {
                let entropy: f32 = weights.iter().filter(|w| **w > 0.0).map(|w| -w * w.ln()).sum();
                assert!((stats.entropy[[0, 1, row]] - entropy).abs() < 1e-4, "{name}: {part} row {row}");
            }
        }
    }
}

#[test]
fn decoders_write_what_transformers_writes() {
    for name in PAIRS {
        let pair = Pair::load(name);
        let (decoder, mut want) = (pair.decoder(), pair.ids("generated"));
        match name {
            // Its first tokens are left out.
            "whisper" => want.insert(0, 1),
            // The last token is made the end, whatever is likely.
            "bart" | "marian" => want.truncate(12),
            _ => {}
        }
        for cached in [true, false] {
            let mut ids = decoder.start_ids().to_vec();
            let options = Generation { cached, ..Generation::greedy(12) };
            let written = decoder.generate(&ids, &options, &Edits::default(), &Sources::default(), |_| true).expect(name);
            ids.extend(written);
            ids.truncate(want.len());
            assert_eq!(ids, want, "{name}, cached: {cached}");
        }
    }
}

#[test]
fn images_are_classified_as_by_transformers() {
    let pair = Pair {
        model: Model::load(folder("vit")).expect("vit"),
        file: SafetensorsFile::read(&folder("vit").join("pair.safetensors")).expect("vit"),
    };
    let pixels = pair.numbers("pixel_values");
    let pixels = ArrayView3::from_shape((3, 24, 24), &pixels).expect("pixels");
    let read = |pixels| pair.model.read(Input::Pixels(pixels), &Edits::default(), &Sources::default());
    let run = read(pixels).expect("vit");
    let logits = run.logits().expect("classes");
    let error = worst(logits.row(0).iter().copied(), &pair.numbers("logits"));
    assert!(error < 1e-3, "logits differ by {error}");
    let error = worst(run.weights(1, 1).expect("weights"), &pair.numbers("weights"));
    assert!(error < 1e-5, "weights differ by {error}");
    let small = ArrayView3::from_shape((3, 12, 48), pixels.as_slice().expect("standard")).expect("pixels");
    assert!(read(small).expect_err("another size").to_string().contains("(3, 24, 24)"));
    let mut broken = pixels.to_owned();
    broken[[1, 2, 3]] = f32::NAN;
    assert!(read(broken.view()).expect_err("NaN").to_string().contains("NaN"));
    let error = pair.model.run(&[0, 1], &Edits::default(), &Sources::default()).expect_err("tokens").to_string();
    assert!(error.contains("front end"), "{error}");
}

#[test]
fn edits_are_of_the_part_that_is_run() {
    for name in ["t5", "whisper"] {
        let pair = Pair::load(name);
        let (written, decoder) = (pair.ids("written"), pair.decoder());
        let intact = decoder.losses(&written, &Edits::default(), &Sources::default()).expect(name);
        let edited = |edits: &str| decoder.losses(&written, &Edits::parse(edits).expect(edits), &Sources::default()).expect(edits);
        assert_eq!(edited("L0.H1=gain:1"), intact, "{name}: a null edit changes nothing");
        for edits in ["L0.H1=zero", "L1.mlp=zero", "heads=uniform", "mask=window:2,0"] {
            assert_ne!(edited(edits), intact, "{name} {edits}");
        }
        // Relative positions go with the head that attends for itself.
        let one = run(&decoder, &written, "L1.H2=temp:1.0000001");
        let error = worst(one.hidden().iter().copied(), run(&decoder, &written, "").hidden().as_slice().expect("rows"));
        assert!(error < 1e-4, "{name}: {error}");
        let other = pair.model.reading(&pair.read("L0.H0=zero")).expect(name);
        assert_ne!(other.losses(&written, &Edits::default(), &Sources::default()).expect(name), intact, "{name}: an edit of the encoder");
        let cut = decoder.screen(std::slice::from_ref(&written), &[], |_, _| true).expect(name);
        let alone = edited("L1.H3=zero").iter().sum::<f64>() / 11.0;
        assert!((cut[7].edited[0] - alone).abs() < 1e-9, "{name}: {} and {alone}", cut[7].edited[0]);
        let lens = decoder.lens(&written, &Edits::default(), &Sources::default(), 3).expect(name);
        let last = lens.loss.row(decoder.shape().layers);
        assert!((last[3] - intact[3]).abs() < 1e-5, "{name}: {} and {}", last[3], intact[3]);
        let attributed = decoder.attribute(&written, &Edits::default(), &Sources::default(), 5, 7).expect(name);
        let sum: f64 = attributed.writes.iter().sum();
        assert!((sum - attributed.logit).abs() < 1e-3, "{name}: {sum} and {}", attributed.logit);
    }
}

#[test]
fn what_has_no_meaning_is_refused() {
    let (t5, whisper, llama) = (Pair::load("t5"), Pair::load("whisper"), Model::load(folder("llama3")).expect("llama3"));
    let (none, nothing) = (Edits::default(), Sources::default());
    let says = |error: Error, text: &str| assert!(error.to_string().contains(text), "{error}");
    says(t5.model.run(&[1, 2], &none, &nothing).expect_err("no source"), "give it a source text");
    says(whisper.model.run(&[1, 2], &none, &nothing).expect_err("no sound"), "give it sound");
    says(whisper.model.read(Input::Ids(&[1]), &none, &nothing).expect_err("tokens"), "reads sound");
    let features = ndarray::Array2::<f32>::zeros((8, 59));
    says(whisper.model.read(Input::Features(features.view()), &none, &nothing).expect_err("short"), "(8, 60)");
    says(t5.model.read(Input::Features(features.view()), &none, &nothing).expect_err("sound"), "no tokens");
    says(llama.reading(&t5.read("")).expect_err("no encoder"), "no encoder");
    says(t5.model.reading(&whisper.read("")).expect_err("another"), "another model");
    let decoder = t5.decoder();
    let patched = decoder.patch(&[1, 2], &[1, 3], regard_model::PatchOptions::default(), |_, _| ());
    says(patched.expect_err("patch"), "not supported");
    says(regard_model::circuit::Graph::of(&decoder).expect_err("circuit"), "not supported");
}

#[test]
fn experts_are_shared_out_as_the_router_says() {
    let model = Model::load(folder("mixtral")).expect("mixtral");
    let routing = model.routing(&[5, 9, 14, 60], &Edits::default(), &Sources::default(), 1).expect("routing");
    assert_eq!(routing.len(), 4);
    for chosen in &routing {
        assert_eq!(chosen.len(), 2);
        assert!(chosen[0].1 >= chosen[1].1 && chosen[0].0 != chosen[1].0, "{chosen:?}");
        assert!((chosen[0].1 + chosen[1].1 - 1.0).abs() < 1e-6, "{chosen:?}");
    }
    let plain = Model::load(folder("llama3")).expect("llama3");
    assert!(plain.routing(&[5, 9], &Edits::default(), &Sources::default(), 1).expect("none").is_empty());
}

/// The images of `golden/vit` were resized by Pillow.
#[test]
fn images_of_files_are_resized_as_by_pillow() {
    let (none, nothing) = (Edits::default(), Sources::default());
    let image = Image::read(&folder("vit").join("image.png")).expect("an image");
    assert_eq!(image.size(), [31, 45]);
    for (resample, bound) in [(1, 0.0), (2, 1e-2), (3, 0.0)] {
        let copy = tempfile::tempdir().expect("a folder");
        for name in ["config.json", "model.safetensors"] {
            std::fs::copy(folder("vit").join(name), copy.path().join(name)).expect("copied");
        }
        let settings = format!("{{\"resample\": {resample}, \"image_mean\": [0.4, 0.5, 0.6], \"image_std\": [0.2, 0.25, 0.3]}}");
        std::fs::write(copy.path().join("preprocessor_config.json"), settings).expect("settings");
        let model = Model::load(copy.path()).expect("vit");
        let resized = Image::read(&folder("vit").join(format!("resized_{resample}.png"))).expect("an image");
        let run = |image: &Image| model.read(Input::Image(image), &none, &nothing).expect("an image");
        let error = worst(run(&image).hidden().iter().copied(), run(&resized).hidden().as_slice().expect("rows"));
        assert!(error <= bound, "filter {resample}: {error}");
        // Another mean is another image.
        let plain = Model::load(folder("vit")).expect("vit").read(Input::Image(&resized), &none, &nothing).expect("an image");
        assert_ne!(plain.hidden(), run(&resized).hidden());
        std::fs::write(copy.path().join("preprocessor_config.json"), "{\"image_std\": [0, 1, 1]}").expect("settings");
        assert!(Model::load(copy.path()).expect_err("a deviation of 0").to_string().contains("image_std"));
    }
}

/// Of every kind of PNG, the same pixels; a broken file is refused.
#[test]
fn images_are_read_from_every_kind_of_png() {
    let encoded = |colour: png::ColorType, pixels: &[u8]| {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, 2, 1);
        encoder.set_color(colour);
        if colour == png::ColorType::Indexed {
            encoder.set_palette(vec![7, 8, 9, 200, 100, 50]);
        }
        encoder.write_header().and_then(|mut writer| writer.write_image_data(pixels)).expect("a PNG");
        bytes
    };
    let rgb = Image::decode(&encoded(png::ColorType::Rgb, &[7, 8, 9, 200, 100, 50])).expect("RGB");
    assert_eq!(Image::decode(&encoded(png::ColorType::Rgba, &[7, 8, 9, 0, 200, 100, 50, 255])).expect("RGBA"), rgb);
    assert_eq!(Image::decode(&encoded(png::ColorType::Indexed, &[0, 1])).expect("a palette"), rgb);
    let grey = Image::decode(&encoded(png::ColorType::Rgb, &[7, 7, 7, 200, 200, 200])).expect("RGB");
    assert_eq!(Image::decode(&encoded(png::ColorType::Grayscale, &[7, 200])).expect("grey"), grey);
    assert_eq!(Image::decode(&encoded(png::ColorType::GrayscaleAlpha, &[7, 0, 200, 9])).expect("grey"), grey);
    let whole = encoded(png::ColorType::Rgb, &[7, 8, 9, 200, 100, 50]);
    for broken in [&whole[..0], &whole[..20], &whole[..whole.len() - 20], b"GIF89a".as_slice()] {
        assert!(Image::decode(broken).is_err(), "{} bytes", broken.len());
    }
    // A header that says 2^31 x 2^31 pixels.
    let mut large = whole.clone();
    large[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
    assert!(Image::decode(&large).is_err());
    let error = Model::built_in().expect("built in").read(Input::Image(&rgb), &Edits::default(), &Sources::default());
    assert!(error.expect_err("no image").to_string().contains("no tokens"));
}
