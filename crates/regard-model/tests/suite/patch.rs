//! Patches of heads, runs that begin at an edit, the lens and attributions: each against what it stands for.

use crate::edits::Change;
use crate::golden::{Golden, folder};
use regard_model::{Edits, Input, LogitOf, Model, PatchOptions, Run, Site, Sources};

fn edits(text: &str) -> Edits {
    Edits::parse(text).expect(text)
}

/// Two texts of one length.
fn texts(golden: &Golden) -> (Vec<u32>, Vec<u32>) {
    let mut corrupt = golden.ids.clone();
    corrupt.rotate_left(1);
    (golden.ids.clone(), corrupt)
}

#[test]
fn each_patch_has_the_bits_of_a_run_with_its_edit() {
    for name in ["llama3", "gpt2", "gemma2", "gpt_neox"] {
        let (golden, model) = (Golden::read(name), Model::load(folder(name)).expect(name));
        let (clean, corrupt) = texts(&golden);
        let nothing = Sources::default();
        let mut sources = Sources::default();
        model.source(&mut sources, "clean", &clean).expect(name);
        let row = |model: &Model, ids: &[u32], edits: &Edits, sources: &Sources| {
            let run = model.run(ids, edits, sources).expect(name);
            model.logits(&run.hidden().row(ids.len() - 1).to_vec()).expect(name)
        };
        let best = |row: &[f32]| (0..row.len()).fold(0, |best, id| if row[id] > row[best] { id } else { best }) as u32;
        let (a, b) = (row(&model, &clean, &edits(""), &nothing), row(&model, &corrupt, &edits(""), &nothing));
        let most_likely = [best(&a), best(&b)];
        let own = (most_likely[0] != most_likely[1]).then_some((None, false));
        for (tokens, by_position) in own.into_iter().chain([(Some([3, 5]), false), (Some([3, 5]), true)]) {
            let mut told = Vec::new();
            let patched = model
                .patch(&clean, &corrupt, PatchOptions { tokens, by_position, ..PatchOptions::default() }, |done, all| {
                    told.push((done, all))
                })
                .expect(name);
            let [right, wrong] = tokens.unwrap_or(most_likely);
            assert_eq!(patched.tokens, [right, wrong], "{name}");
            let margin = |row: &[f32]| f64::from(row[right as usize]) - f64::from(row[wrong as usize]);
            assert!((patched.clean - margin(&a)).abs() < 1e-5 && (patched.corrupt - margin(&b)).abs() < 1e-5, "{name}");
            assert!((patched.share(patched.clean) - 1.0).abs() < 1e-12 && patched.share(patched.corrupt) == 0.0);
            let positions = if by_position { clean.len() } else { 1 };
            assert_eq!(patched.margins.dim(), (model.shape().layers, model.shape().heads, positions), "{name}");
            assert_eq!(told.last(), Some(&(patched.margins.len(), patched.margins.len())), "{name}");
            let mut moved = 0;
            for ((layer, head, at), &got) in patched.margins.indexed_iter() {
                let rows = if by_position { format!("@{at}") } else { String::new() };
                // A model that remembers no run.
                let fresh = Model::load(folder(name)).expect(name);
                let expected = margin(&row(&fresh, &corrupt, &edits(&format!("L{layer}.H{head}=patch:clean{rows}")), &sources));
                assert!((got - expected).abs() < 1e-5, "{name} L{layer}.H{head}{rows}: {got} is not {expected}");
                moved += usize::from((got - patched.corrupt).abs() > 1e-4);
            }
            assert!(moved > 0, "{name}: no patch changes anything");
        }
        assert!(model.patch(&clean, &clean, PatchOptions::default(), |_, _| {}).is_err(), "{name}: nothing to carry");
        assert!(model.patch(&clean, &clean[1..], PatchOptions::default(), |_, _| {}).is_err(), "{name}: another length");
        let no_token = PatchOptions { tokens: Some([3, 1 << 30]), ..PatchOptions::default() };
        assert!(model.patch(&clean, &corrupt, no_token, |_, _| {}).is_err(), "{name}: no token");
    }
}

/// The corrupt text with one row of a head's weights from the clean one.
fn weights_of_row(model: &Model, [clean, corrupt]: [&[u32]; 2], layer: usize, head: usize, row: usize) -> Run {
    let none = Sources::default();
    let weights = model.run(clean, &edits(""), &none).expect("clean").weights(layer, head).expect("weights");
    let change = |of: usize, at: usize, x: &mut f32, key: usize| {
        if of == head {
            *x = weights[[at, key]];
        }
    };
    let hook = Change { layer, site: Site::Pattern, rows: row..=row, change: &change };
    model.run_with(corrupt, &edits(""), &none, &hook).expect("a hook")
}

/// Every other site, by position and all together; key and value heads are fewer in llama3 and gemma2.
#[test]
fn patches_of_all_sites_are_runs_with_their_edits() {
    for name in ["llama3", "gpt2", "gemma2", "gpt_neox", "bloom"] {
        let (golden, model) = (Golden::read(name), Model::load(folder(name)).expect(name));
        let (clean, corrupt) = texts(&golden);
        let shape = model.shape();
        for site in Site::ALL {
            let (target, letter, parts) = match site {
                Site::Z => ("H", "", shape.heads),
                Site::Q => ("H", ".q", shape.heads),
                Site::Pattern => ("H", ".weights", shape.heads),
                Site::K => ("KV", ".k", shape.kv_heads),
                Site::V => ("KV", ".v", shape.kv_heads),
                _ => (site.name(), "", 1),
            };
            for by_position in [false, true] {
                let options = PatchOptions { site, tokens: Some([3, 5]), by_position };
                let patched = model.patch(&clean, &corrupt, options, |_, _| {}).expect(name);
                let positions = if by_position { clean.len() } else { 1 };
                assert_eq!(patched.margins.dim(), (shape.layers, parts, positions), "{name} {site:?}");
                let mut moved = 0;
                for ((layer, part, at), &got) in patched.margins.indexed_iter().filter(|((.., at), _)| at % 5 == 0) {
                    let rows = if by_position { format!("@{at}") } else { String::new() };
                    let number = if parts > 1 || site.has_heads() { part.to_string() } else { String::new() };
                    let text = format!("L{layer}.{target}{number}=patch:clean{letter}{rows}");
                    let run = if site == Site::Pattern && by_position {
                        weights_of_row(&model, [&clean, &corrupt], layer, part, at)
                    } else {
                        let mut sources = Sources::default();
                        model.source_for(&edits(&text), &mut sources, "clean", &clean).expect(&text);
                        model.run(&corrupt, &edits(&text), &sources).expect(&text)
                    };
                    let row = model.logits(&run.hidden().row(corrupt.len() - 1).to_vec()).expect(&text);
                    let expected = f64::from(row[3]) - f64::from(row[5]);
                    assert!((got - expected).abs() < 1e-5, "{name} {text}: {got} is not {expected}");
                    moved += usize::from((got - patched.corrupt).abs() > 1e-5);
                }
                assert!(moved > 0, "{name} {site:?}: no patch changes anything");
                if site.is_stream() && !by_position {
                    // The stream holds all that comes after it; between branches of the same rows, the network has read before.
                    let whole = |margin: &f64| (patched.share(*margin) - 1.0).abs() < 1e-3;
                    assert!(site == Site::ResidMid || patched.margins.iter().all(whole), "{name} {site:?}: {:?}", patched.margins);
                }
            }
        }
    }
}

#[test]
fn a_run_that_begins_at_its_edit_is_the_whole_run() {
    for name in ["llama3", "gpt2", "gemma2", "qwen3", "gpt_neox"] {
        let (golden, warm) = (Golden::read(name), Model::load(folder(name)).expect(name));
        let (clean, other) = texts(&golden);
        let none = Sources::default();
        let first = warm.run(&clean, &edits(""), &none).expect(name);
        warm.run(&other, &edits(""), &none).expect(name);
        let again = warm.run(&clean, &edits(""), &none).expect(name);
        assert_eq!(first.hidden(), again.hidden(), "{name}");
        // Layer by layer, which keeps what runs begin at, too.
        let layered = Model::load(folder(name)).expect(name);
        for _ in 0..2 {
            let mut layers = 0;
            let run = layered.run_by_layers(&clean, &edits(""), &none, |_| layers += 1).expect(name);
            assert_eq!((first.hidden(), layers), (run.hidden(), warm.shape().layers), "{name}");
        }
        let [cold, warm_lens] =
            [&Model::load(folder(name)).expect(name), &layered].map(|model| model.lens(&clean, &edits(""), &none, 3).expect(name));
        assert_eq!((cold.top, cold.probability, cold.entropy), (warm_lens.top, warm_lens.probability, warm_lens.entropy), "{name}");
        for text in ["L0.H0=zero", "L1.H1=zero", "L1.mlp=zero", "L1=gain:0.5", "scale=off", "L1.H0=temp:2", "L1.H1=gain:1"] {
            let cold = Model::load(folder(name)).expect(name).run(&clean, &edits(text), &none).expect(name);
            let quick = warm.run(&clean, &edits(text), &none).expect(name);
            assert_eq!(cold.hidden(), quick.hidden(), "{name} {text}");
            let mut counts = Vec::new();
            let count = |run: &regard_model::Run| counts.push(run.activations().len());
            let layered = warm.run_by_layers(&clean, &edits(text), &none, count).expect(name);
            assert_eq!(cold.hidden(), layered.hidden(), "{name} {text}");
            assert_eq!(counts, (1..=warm.shape().layers).collect::<Vec<_>>(), "{name} {text}");
            let lens = |model: &Model| model.lens(&clean, &edits(text), &none, 3).expect(name);
            let [lens_cold, lens_warm] = [lens(&Model::load(folder(name)).expect(name)), lens(&warm)];
            assert_eq!((&lens_cold.top, &lens_cold.probability), (&lens_warm.top, &lens_warm.probability), "{name} {text}");
            assert_eq!(lens_cold.entropy, lens_warm.entropy, "{name} {text}");
            assert_eq!(lens_cold.loss.mapv(f64::to_bits), lens_warm.loss.mapv(f64::to_bits), "{name} {text}");
            assert_eq!(quick.edits().canonical(), edits(text).canonical());
            for layer in 0..warm.shape().layers {
                assert_eq!(cold.z(layer).expect(name), quick.z(layer).expect(name), "{name} {text} layer {layer}");
                assert_eq!(cold.weights(layer, 1).expect(name), quick.weights(layer, 1).expect(name), "{name} {text} layer {layer}");
            }
        }
        // An edited run as a source: path patching by hand.
        let edited = warm.run(&other, &edits("L0.H0=zero"), &none).expect(name);
        let sources = Sources { texts: [("x".to_owned(), edited.activations())].into(), ..Sources::default() };
        let patched = warm.run(&clean, &edits("L1.H1=patch:x"), &sources).expect(name);
        assert_eq!(
            patched.z(1).expect(name).index_axis(ndarray::Axis(0), 1),
            edited.z(1).expect(name).index_axis(ndarray::Axis(0), 1),
            "{name}"
        );
        assert_eq!(patched.z(0).expect(name), first.z(0).expect(name), "{name}");
    }
}

/// By the definition, in f64, from the logits of the run.
#[test]
fn the_lens_after_the_last_layer_is_the_prediction() {
    let model = Model::built_in().expect("it is in the crate");
    let ids = model.ids(Input::Text("Emma and David went to the river. They saw a dog.")).expect("letters");
    let run = model.run(&ids, &edits(""), &Sources::default()).expect("a text");
    let (logits, losses) = (run.logits().expect("a head"), run.losses().expect("a head"));
    for top in [1, 5, model.vocab()] {
        let lens = model.lens(&ids, &edits(""), &Sources::default(), top).expect("a text");
        let last = model.shape().layers;
        for (row, logits) in logits.outer_iter().enumerate() {
            let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
            let p: Vec<f64> = logits.iter().map(|x| f64::from(*x).exp() / sum).collect();
            let mut order: Vec<usize> = (0..p.len()).collect();
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
            for (place, &id) in order.iter().take(top).enumerate() {
                assert_eq!(lens.top[[last, row, place]] as usize, id, "row {row}, place {place}");
                assert!((f64::from(lens.probability[[last, row, place]]) - p[id]).abs() < 1e-6);
            }
            let entropy: f64 = -p.iter().map(|p| p * p.ln()).sum::<f64>();
            assert!((lens.entropy[[last, row]] - entropy).abs() < 1e-5, "row {row}: {} is not {entropy}", lens.entropy[[last, row]]);
            match losses.get(row) {
                Some(loss) => assert!((lens.loss[[last, row]] - loss).abs() < 1e-5),
                None => assert!(lens.loss[[last, row]].is_nan()),
            }
        }
    }
}

#[test]
fn a_difference_of_logits_is_the_difference_of_attributions() {
    // Products are in f32.
    let near = |both: f64, a: f64, b: f64| (both - (a - b)).abs() < 1e-5 * (1.0 + a.abs() + b.abs());
    for name in ["gpt2", "llama3", "gpt_neox"] {
        let (golden, model) = (Golden::read(name), Model::load(folder(name)).expect(name));
        let (ids, none) = (&golden.ids, Sources::default());
        let row = ids.len() - 1;
        let of = |token, minus| model.attribute_to(ids, &edits(""), &none, row, LogitOf { token, minus, by_position: false }).expect(name);
        let logits = model.run(ids, &edits(""), &none).expect(name).logits().expect(name).row(row).to_vec();
        let best = (0..logits.len()).fold(0, |best, id| if logits[id] > logits[best] { id } else { best });
        let (most_likely, a, b, both) = (of(None, None), of(Some(3), None), of(Some(5), None), of(Some(3), Some(5)));
        assert_eq!(most_likely.token as usize, best, "{name}");
        assert!((a.logit - f64::from(logits[3])).abs() < 1e-4, "{name}: {} is not {}", a.logit, logits[3]);
        assert!(near(both.logit, a.logit, b.logit), "{name}: {} is not {} - {}", both.logit, a.logit, b.logit);
        for ((part, both), (a, b)) in both.parts.iter().zip(&both.writes).zip(a.writes.iter().zip(&b.writes)) {
            assert!(near(*both, *a, *b), "{name} {part}: {both} is not {a} - {b}");
        }
        assert!(model.attribute_to(ids, &edits(""), &none, row, LogitOf { minus: Some(1 << 30), ..LogitOf::default() }).is_err());
    }
}

#[test]
fn attributions_by_position_add_up_to_their_heads() {
    for name in ["gpt2", "llama3", "gpt_neox", "qwen3"] {
        let (golden, model) = (Golden::read(name), Model::load(folder(name)).expect(name));
        let ids = &golden.ids;
        let mut sources = Sources::default();
        let other: Vec<u32> = ids.iter().rev().copied().collect();
        model.source(&mut sources, "B", &other).expect(name);
        for text in ["", "heads=temp:2/L1.H1=hide:first@3-9", "L0.H1=patch:B.v/L1.mlp=zero"] {
            for row in [0, 4, ids.len() - 1] {
                let of = |by_position| LogitOf { token: Some(3), minus: Some(5), by_position };
                let [whole, apart] =
                    [false, true].map(|apart| model.attribute_to(ids, &edits(text), &sources, row, of(apart)).expect(name));
                assert!((whole.logit - apart.writes.iter().sum::<f64>()).abs() < 1e-4, "{name} {text} row {row}");
                assert!(whole.positions.iter().all(|position| *position == row));
                for (part, writes) in whole.parts.iter().zip(&whole.writes) {
                    let mine: Vec<(usize, f64)> = apart
                        .parts
                        .iter()
                        .zip(apart.positions.iter().zip(&apart.writes))
                        .filter(|(of, _)| *of == part)
                        .map(|(_, (position, writes))| (*position, *writes))
                        .collect();
                    let sum: f64 = mine.iter().map(|(_, writes)| writes).sum();
                    assert!((sum - writes).abs() < 1e-5 * (1.0 + writes.abs()), "{name} {text} {part}: {sum} is not {writes}");
                    let positions: Vec<usize> = mine.iter().map(|(position, _)| *position).collect();
                    let expected = if part.contains(".H") { (0..=row).collect() } else { vec![row] };
                    assert_eq!(positions, expected, "{name} {part}");
                }
            }
        }
        let of = LogitOf { by_position: true, ..LogitOf::default() };
        assert!(model.attribute_to(ids, &edits("L0.H1=zero"), &sources, 1, of).is_err(), "{name}: nothing to take apart");
    }
}

#[test]
fn edits_of_the_stream_are_parts_of_an_attribution() {
    for name in ["gpt2", "llama3"] {
        let (golden, model) = (Golden::read(name), Model::load(folder(name)).expect(name));
        let row = golden.ids.len() - 1;
        for text in [
            "L0.resid_mid=gain:0.5",
            "L1.attn_out=zero/L0.mlp=gain:2",
            "L1.resid_pre=gain:0.5/L1.resid_post=gain:2",
            "L0.attn_out=gain:3@last",
        ] {
            let parts = model.attribute(&golden.ids, &edits(text), &Sources::default(), row, 3).expect(name);
            let logit = model.run(&golden.ids, &edits(text), &Sources::default()).expect(name).logits().expect(name)[[row, 3]];
            assert!((parts.logit - f64::from(logit)).abs() < 1e-4, "{name} {text}: {} is not {logit}", parts.logit);
            let sum: f64 = parts.writes.iter().sum();
            assert!((sum - parts.logit).abs() < 1e-4, "{name} {text}: {sum} is not {}", parts.logit);
        }
    }
}
