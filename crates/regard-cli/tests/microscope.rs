//! The microscope's commands, on the model that comes with regard.

mod common;

use common::{refused, works};
use std::path::Path;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_look_without_a_model_draws_every_head() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = works(&["look", "--out", "."], folder.path());
    assert!(text.contains("entropy") && text.contains("loss"), "{text}");
    for file in ["look.csv", "heads.svg", "heads.png"] {
        assert!(folder.path().join(file).is_file(), "{file}");
    }
}

#[test]
fn surgery_without_a_model_costs_something_and_says_how_sure_that_is() {
    let text = works(&["surgery", "scale=off", "--json", "--texts", "6", "--tokens", "96"], here());
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let value = |what: &str| {
        let rows = json[0]["rows"].as_array().expect("rows");
        let row =
            rows.iter().find(|row| row["what"].as_str().is_some_and(|w| w.starts_with(what))).unwrap_or_else(|| panic!("{what}: {json}"));
        row["value"].as_f64().expect("a number")
    };
    assert!(value("change") > 0.0 && value("change, lower 95 % bound") <= value("change"), "{json}");
    let words = works(&["surgery", "heads=hide:first/L1.H2=zero", "--explain"], here());
    assert!(words.contains("first key") && words.contains("Head 2 of layer 1"), "{words}");
}

fn rows(json: &str) -> Vec<serde_json::Value> {
    let json: serde_json::Value = serde_json::from_str(json).expect("JSON");
    json[0]["rows"].as_array().expect("rows").clone()
}

#[test]
fn heads_of_the_small_model_have_scores_and_names() {
    let text = works(&["classify", "--json", "--texts", "6", "--tokens", "96"], here());
    let rows = rows(&text);
    assert!(rows.len() >= 6 && rows.iter().all(|row| row["induction"].is_number() && row["positional"].is_number()), "{text}");
    for name in ["previous", "induction", "first"] {
        assert!(rows.iter().filter_map(|row| row["labels"].as_str()).any(|label| label.contains(name)), "{name}: {text}");
    }
}

#[test]
fn one_weight_is_explained_number_by_number() {
    let folder = tempfile::tempdir().expect("a folder");
    works(&["look", "--layer", "0", "--head", "1", "--neuron", "12,7", "--sink", "renormalise", "--out", "."], folder.path());
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let (numbers, keys, weights) = (read("neuron.csv"), read("neuron_keys.csv"), read("head_0_1.csv"));
    let cells = |line: &str| line.rsplit(',').map(|x| x.parse::<f64>().unwrap_or(f64::NAN)).collect::<Vec<_>>();
    let product = cells(numbers.lines().last().expect("a line"))[0];
    // From the end: weight, score, capped, scaled, q.k.
    let key = cells(keys.lines().find(|line| line.starts_with("7,")).expect("the key"));
    assert!((key[4] - product).abs() < 1e-9, "{product} is not in {key:?}");
    assert!(weights.contains("left out, and the rest divided"), "{}", &weights[..300]);
    for file in ["neuron_0_1_12_7.svg", "neuron_0_1_12_7.png", "head_0_1.svg", "head_0_1.png"] {
        assert!(folder.path().join(file).is_file(), "{file}");
    }
}

#[test]
fn heads_are_taken_out_in_three_ways_and_directly() {
    let folder = tempfile::tempdir().expect("a folder");
    let ways = rows(&works(&["surgery", "L1.H1=zero", "--ways", "--json", "--texts", "3", "--tokens", "48"], here()));
    let edits: Vec<&str> = ways.iter().filter_map(|row| row["edits"].as_str()).collect();
    assert_eq!(edits, ["L1.H1=zero", "L1.H1=mean", "L1.H1=resample:1"]);
    refused(&["surgery", "scale=off", "--ways"], here(), "--ablations is for zero, mean and resample");
    let screen = rows(&works(&["screen", "--direct", "--json", "--texts", "2", "--tokens", "32", "--out", "."], folder.path()));
    assert!(screen.iter().all(|row| row["change"].is_number() && row["direct"].is_number()), "{screen:?}");
}

/// The numbers of a row of `eval`, without the edits.
fn measured(row: &serde_json::Value) -> (String, u64, u64, f64) {
    let whole = |name: &str| row[name].as_u64().unwrap_or_else(|| panic!("{name}: {row}"));
    (row["part"].as_str().expect("a part").to_owned(), whole("tokens"), whole("characters"), row["loss"].as_f64().expect("a loss"))
}

#[test]
fn trained_models_are_measured_on_their_unseen_tenth_with_and_without_edits() {
    for tokenizer in ["char", "bpe:300", "bpe+bos:300", "wordpiece:200"] {
        let folder = tempfile::tempdir().expect("a folder");
        let train = ["train", "--steps", "2", "--characters", "6000", "--tokenizer", tokenizer, "--context", "32", "--quiet"];
        works(&train, folder.path());
        let eval = |more: &[&str]| rows(&works(&[&["eval", "model", "--json"], more].concat(), folder.path()));
        let plain = eval(&[]);
        let (part, tokens, characters, loss) = measured(&plain[0]);
        let bos = usize::from(tokenizer.contains("bos")) as u64;
        assert_eq!(part, "validation", "{tokenizer}");
        assert!((500..=800).contains(&characters) && tokens <= characters + bos, "{tokenizer}: {plain:?}");
        assert!(plain[0]["accuracy"].is_number() && plain[0]["step"] == 2 && loss > 1.0, "{plain:?}");
        let edited = eval(&["--edits", "L0.H0=gain:1"]);
        assert_eq!(edited.len(), 2, "{edited:?}");
        for row in &edited {
            assert_eq!(measured(row), measured(&plain[0]), "{tokenizer}: an edit that changes nothing");
            let columns = |row: &serde_json::Value| row.as_object().expect("a row").keys().cloned().collect::<Vec<_>>();
            assert_eq!(columns(row), columns(&plain[0]));
        }
        assert_ne!(measured(&eval(&["--edits", "L0=zero"])[1]).3, loss);
        // Past the context, with edits as without.
        let write = |edits: &str| {
            let words = ["generate", "model", "--tokens", "90", "--json", "--edits", edits];
            let json: serde_json::Value = serde_json::from_str(&works(&words, folder.path())).expect("JSON");
            json["tokens"].as_array().expect("tokens").clone()
        };
        assert_eq!(write("").len(), 90, "{tokenizer}");
        assert_eq!(write("L0.H0=gain:1"), write(""), "{tokenizer}");
        assert_eq!(write("L0.H0=zero").len(), 90, "{tokenizer}");
    }
}

#[test]
fn a_model_of_the_standard_input_says_that_its_text_is_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("text.txt"), "Emma and David went to the market. ".repeat(60)).expect("written");
    let text = || std::fs::File::open(folder.path().join("text.txt")).expect("a text");
    let train = ["train", "--steps", "1", "--context", "16", "--text", "-", "--quiet"];
    assert!(common::command(&train, folder.path()).stdin(text()).status().expect("it starts").success());
    for edits in ["", "L0.H0=gain:1"] {
        // A pipe that stays open: waiting for it would not end.
        let mut child = common::command(&["eval", "model", "--edits", edits], folder.path());
        let child = child.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = child.spawn().expect("it starts");
        let _open = child.stdin.take();
        let started = std::time::Instant::now();
        while child.try_wait().expect("a status").is_none() {
            if started.elapsed().as_secs() > 20 {
                let _ = child.kill();
                panic!("{edits:?}: waits for the standard input");
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        common::fails(&child.wait_with_output().expect("ended"), 2, "standard input");
    }
}

#[test]
fn any_model_is_measured_on_a_text_with_and_without_edits() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("text.txt"), "Emma and David went to the market. She likes the old boats. They wait at the market.")
        .expect("written");
    works(
        &["train", "--steps", "2", "--characters", "20000", "--tokenizer", "bpe+bos:300", "--repeats", "0.5", "--context", "32", "--quiet"],
        folder.path(),
    );
    let rows = rows(&works(&["eval", "model", "--text", "text.txt", "--edits", "scale=off", "--json"], folder.path()));
    assert_eq!(rows.len(), 2, "{rows:?}");
    let loss = |row: &serde_json::Value| row["loss"].as_f64().expect("a loss");
    assert!(loss(&rows[0]) > 1.0 && loss(&rows[0]) != loss(&rows[1]), "{rows:?}");
    assert!(!works(&["generate", "model", "--tokens", "5", "--edits", "L0.H1=zero"], folder.path()).is_empty());
}

#[test]
fn the_small_model_knows_the_text_that_is_there_without_any() {
    assert!(works(&["tokens"], here()).contains(" text"));
    assert!(works(&["lens"], here()).contains("entropy"));
    // What is in no file is said as a whole, however long it is.
    let text = "Emma went home. ".repeat(40);
    let tokens = rows(&works(&["tokens", "--text", &text, "--json"], here())).len();
    let lines = works(&["tokens", "--text", &text], here()).lines().filter(|line| line.trim_end().ends_with(" text")).count();
    assert!(tokens > 100 && lines >= tokens - 1, "{lines} lines of {tokens} tokens");
}

#[test]
fn what_cannot_be_used_is_said_in_one_line() {
    for (words, reason) in [
        (["surgery", "L9=zero"].as_slice(), "no layer 9"),
        (&["surgery", "scale=of"], "no number"),
        (&["inspect", "no/such/model"], "no such file"),
        (&["look", "Cargo.toml"], "neither GGUF"),
        (&["patch", "--clean", "a", "--corrupt", "the cat and the dog"], "same number of tokens"),
        (&["look", "--layer", "0", "--head", "1", "--neuron", "12"], "as in 12,7"),
        (&["look", "--layer", "0", "--head", "1", "--neuron", "12,700"], "key"),
        (&["eval", "Cargo.toml"], "neither GGUF"),
    ] {
        refused(words, here(), reason);
    }
}

/// A tone of 0.4 seconds in stereo, 16 bits, 22,050 samples a second.
fn tone(path: &Path) {
    let samples: Vec<u8> = (0..8820u32)
        .flat_map(|i| {
            let sample = ((f64::from(i) * 0.18).sin() * 12_000.0) as i16;
            [sample.to_le_bytes(), sample.to_le_bytes()].concat()
        })
        .collect();
    let mut wav = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x02\0".to_vec();
    wav.extend([22_050u32.to_le_bytes(), 88_200u32.to_le_bytes()].concat());
    wav.extend(b"\x04\0\x10\0data");
    wav.extend((samples.len() as u32).to_le_bytes());
    wav.extend(samples);
    std::fs::write(path, wav).expect("the tone");
}

#[test]
fn sound_is_read_and_attention_to_it_is_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    tone(&folder.path().join("tone.wav"));
    let model = here().join("../regard-model/tests/golden/whisper").canonicalize().expect("the model");
    let model = model.to_str().expect("UTF-8");
    let text = works(&["generate", model, "--audio", "tone.wav", "--temperature", "0", "--tokens", "8", "--json"], folder.path());
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["tokens"].as_array().map(Vec::len), Some(8), "{text}");
    for (part, rows, keys) in [("encoder", 20, 20), ("decoder", 7, 7), ("cross", 7, 20)] {
        let arguments = ["look", model, "--audio", "tone.wav", "--part", part, "--head", "1.2", "--generate", "6", "--out", part];
        works(&arguments, folder.path());
        let table = std::fs::read_to_string(folder.path().join(part).join("head_1_2.csv")).expect(part);
        let last = table.lines().last().expect("a line");
        assert!(last.starts_with(&format!("{},{},", rows - 1, keys - 1)), "{part}: {last}");
        assert_eq!(last.contains("0.38s"), part != "decoder", "{part}: {last}");
        assert!(folder.path().join(part).join("head_1_2.png").is_file(), "{part}");
    }
    refused(&["look", model], folder.path(), "--audio FILE");
    refused(&["look", "--audio", "tone.wav"], folder.path(), "no encoder");
    refused(&["look", "--part", "cross"], folder.path(), "--part");
    std::fs::write(folder.path().join("text.wav"), "no sound").expect("a file");
    let output = common::regard(&["generate", model, "--audio", "text.wav"], folder.path());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("no WAV file"), "{error}");
}

#[test]
fn every_activation_is_patched() {
    let texts = ["--clean", "Emma loves the school", "--corrupt", "Emma loves the garden", "--json"];
    let tokens = [texts.as_slice(), &["--token", "a", "--minus", "e"]].concat();
    let of = |site: &str, more: &[&str]| rows(&works(&[&["patch", "--site", site], tokens.as_slice(), more].concat(), here()));
    let (heads, streams) = (of("k", &[]), of("resid_post", &[]));
    assert!(heads.len() == 12 && heads.iter().all(|row| row["head"].is_number() && row["position"].is_null()), "{heads:?}");
    assert!(streams.iter().all(|row| row["head"].is_null() && row["position"].is_number()), "{streams:?}");
    // After the last layer the last position carries all of the difference, and the others nothing.
    let end: Vec<f64> = streams.iter().filter(|row| row["layer"] == 2).filter_map(|row| row["share"].as_f64()).collect();
    let (last, others) = end.split_last().expect("positions");
    assert!((last - 1.0).abs() < 1e-4 && others.iter().all(|share| share.abs() < 1e-4), "{end:?}");
    assert_eq!(of("mlp_out", &["--by-position"]).len(), 3 * end.len());
    refused(&["patch", "--site", "resid", "--clean", "a", "--corrupt", "b"], here(), "no activation; use one of resid_pre");
}

#[test]
fn vectors_of_a_file_steer_every_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let width = regard_model::Model::built_in().expect("the built-in model").width();
    let header = format!("{{\"v\":{{\"dtype\":\"F32\",\"shape\":[{width}],\"data_offsets\":[0,{}]}}}}", 4 * width);
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend((0..width).flat_map(|i| (i as f32).sin().to_le_bytes()));
    std::fs::write(folder.path().join("v.safetensors"), file).expect("vectors");
    let run = |words: &[&str]| works(&[words, &["--vectors", "v.safetensors"]].concat(), folder.path());
    let change = |edits: &str| {
        let json: serde_json::Value =
            serde_json::from_str(&run(&["surgery", edits, "--json", "--texts", "2", "--tokens", "32"])).expect("JSON");
        let rows = json[0]["rows"].as_array().expect("rows").clone();
        rows.iter().find(|row| row["what"] == "change").and_then(|row| row["value"].as_f64()).expect("a change")
    };
    assert!(change("L1.resid=add:v*4").abs() > 1e-3 && change("L1.resid=add:v*0").abs() < 1e-12);
    let write = ["generate", "--prompt", "Emma", "--tokens", "8", "--temperature", "0"];
    assert_ne!(run(&[write.as_slice(), &["--edits", "L0.resid=add:v*20"]].concat()), works(&write, folder.path()));
    assert!(run(&["lens", "--edits", "L1.resid_mid=add:v"]).contains("entropy"));
    run(&["look", "--edits", "L2.resid_post=add:v@last", "--out", "o"]);
    refused(&["lens", "--edits", "L1.resid=add:v"], folder.path(), "no vector named");
    refused(&["lens", "--edits", "L1.resid=add:w", "--vectors", "v.safetensors"], folder.path(), "there are v");
    refused(&["lens", "--vectors", "no.safetensors"], folder.path(), "no.safetensors");
}

#[test]
fn heads_are_screened_by_a_prediction() {
    let folder = tempfile::tempdir().expect("a folder");
    let texts = ["--text", "Emma and David went to the", "--text", "Anna ran to the", "--json", "--out", "o"];
    let by = |more: &[&str]| works(&[&["screen"], texts.as_slice(), more].concat(), folder.path());
    let (loss, probability, difference) =
        (by(&[]), by(&["--token", "a"]), by(&["--token", "a", "--token", "e", "--minus", "e", "--minus", "a", "--direct"]));
    assert!(probability.contains("change of the probability of the token") && difference.contains("change of the difference of logits"));
    let change = |json: &str| rows(json)[5]["change"].as_f64().expect("a change");
    // Stored steps of one metric are not those of another.
    assert!(change(&loss) != change(&probability) && change(&probability) != change(&difference));
    refused(&["screen", "--token", "a", "--token", "e", "--minus", "e"], folder.path(), "give as many of both");
    refused(&["screen", "--minus", "e"], folder.path(), "--token");
}

#[test]
fn keys_that_are_attended_to_are_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let words = ["look", "--text", "Emma went to the river", "--keys", "--head", "1.2", "--json", "--out", "o"];
    let json: serde_json::Value = serde_json::from_str(&works(&words, folder.path())).expect("JSON");
    let tables = json.as_array().expect("tables");
    let keys = tables.iter().find(|table| table["name"] == "keys").expect("keys")["rows"].as_array().expect("rows").clone();
    let sum: f64 = keys.iter().filter_map(|row| row["weight"].as_f64()).sum();
    assert!((sum - keys.len() as f64).abs() < 1e-4, "each of {} queries gives 1, not {sum}", keys.len());
    let last = keys.last().expect("a key");
    assert_eq!(last["weight"], last["mean"], "only the last query sees the last key");
    for file in ["keys.csv", "keys.svg", "keys.png"] {
        assert!(folder.path().join("o").join(file).is_file(), "{file}");
    }
}

#[test]
fn an_image_is_seen_through_a_head() {
    let folder = tempfile::tempdir().expect("a folder");
    let golden = here().join("../regard-model/tests/golden/vit");
    let (model, image) = (golden.to_str().expect("a path"), golden.join("image.png"));
    let image = image.to_str().expect("a path");
    let text = works(&["look", model, "--image", image, "--out", "all"], folder.path());
    assert!(text.contains("most likely classes: "), "{text}");
    let words = ["look", model, "--image", image, "--head", "1.2", "--patch", "1,2", "--keys", "--json", "--out", "one"];
    let json: serde_json::Value = serde_json::from_str(&works(&words, folder.path())).expect("JSON");
    let table = json.as_array().and_then(|tables| tables.iter().find(|table| table["name"] == "head_1_2")).expect("weights");
    let weights: Vec<f64> = table["rows"].as_array().expect("rows").iter().filter_map(|row| row["weight"].as_f64()).collect();
    let sum: f64 = weights.iter().sum();
    assert!(weights.len() > 4 && sum > 0.5 && sum < 1.0, "without the row of the class: {sum}");
    for file in ["all/heads.png", "one/head_1_2.svg", "one/head_1_2.png", "one/keys.png"] {
        assert!(folder.path().join(file).is_file(), "{file}");
    }
    refused(&["look", model], folder.path(), "--image FILE");
    refused(&["look", "--image", image], folder.path(), "reads no images");
    refused(&["look", model, "--image", image, "--patch", "99,0"], folder.path(), "no patch 99,0");
    refused(&["look", model, "--image", golden.join("config.json").to_str().expect("a path")], folder.path(), "not a PNG image");
    refused(&["look", model, "--image", image, "--text", "a"], folder.path(), "--text");
}
