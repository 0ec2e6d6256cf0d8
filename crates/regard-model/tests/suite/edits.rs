//! The grammar, and edits at work.

use crate::golden::{Golden, folder};
use ndarray::{ArrayD, ArrayViewMutD, Axis};
use regard_model::{Arrays, Edits, Generation, Hook, Model, Site, Sources, Vectors};
use std::sync::Arc;

fn canonical(text: &str) -> String {
    Edits::parse(text).unwrap_or_else(|e| panic!("{text}: {e}")).canonical()
}

#[test]
fn strings_that_mean_the_same_have_one_form() {
    for (text, form) in [
        ("", ""),
        ("L3.H1=zero", "L3.H1=zero"),
        ("L3.H5=zero/L3.H1=zero", "L3.H1,5=zero"),
        ("L3.H1,2,3,7=zero", "L3.H1-3,7=zero"),
        ("L5.H1=mean/L3.H1=zero/L4.H1=zero", "L3,4.H1=zero/L5.H1=mean"),
        ("heads=scale:off", "scale=off"),
        ("L2.attn=zero", "L2=zero"),
        ("mask=window:15,0~or~first:4", "mask=window:15,0~or~first:4"),
        ("mask=~not~causal~and~full", "mask=~not~causal~and~full"),
        ("L9.H9=patch:B@last", "L9.H9=patch:B@last"),
        ("L9.H9=patch:B.z@7-7", "L9.H9=patch:B@7"),
        ("heads=uniform@all", "heads=uniform"),
        ("temp=2.50", "temp=2.5"),
        ("L0.KV1=gain:0.5", "L0.KV1=gain:0.5"),
        ("L1.mlp=zero/L1=zero", "L1=zero/L1.mlp=zero"),
        ("L5.resid=add:v*2.0", "L5.resid_pre=add:v*2"),
        ("L5.resid_post=add:v*1@last", "L5.resid_post=add:v@last"),
        ("L1.mlp_out=add:v*-2", "L1.mlp=add:v*-2"),
        ("L3.resid_mid=patch:B/L2.resid_mid=patch:B", "L2,3.resid_mid=patch:B"),
        ("L1.resid=add:b*0.5/L1.resid=add:a/L2.attn_out=zero", "L1.resid_pre=add:a/L1.resid_pre=add:b*0.5/L2.attn_out=zero"),
        ("L1.H2=add:v*3", "L1.H2=add:v*3"),
        ("L0.resid_post=zero/L2.resid_pre=add:v", "L0.resid_post=zero/L2.resid_pre=add:v"),
    ] {
        assert_eq!(canonical(text), form, "{text}");
        assert_eq!(canonical(form), form, "{text}: the form of the form");
        assert!(!Edits::parse(text).expect("just read").explain().is_empty());
    }
}

#[test]
fn what_cannot_be_read_or_clashes_is_refused() {
    for text in [
        "L3",
        "L3.H1",
        "=zero",
        "L.H1=zero",
        "Lx=zero",
        "L3.H1=",
        "L3.H1=zeros",
        "L3.Q1=zero",
        "L3.H5-2=zero",
        "scale=of",
        "scale=nan",
        "temp=0",
        "temp=-1",
        "mask=windw:1,2",
        "mask=window:1",
        "mask=causal~or~",
        "mask=causal~causal",
        "heads=patch:",
        "heads=patch:../x",
        "L1=zero@9-3",
        "L1=zero@x",
        "L1.mlp=uniform",
        "L1.mlp=patch:B.q",
        "L1.resid=mean",
        "L1.resid_pre=patch:B.v",
        "L1.resid=hide:first",
        "L1.resid_end=zero",
        "resid=zero",
        "L1.resid=add:",
        "L1.resid=add:v*",
        "L1.resid=add:v*inf",
        "L1.resid=add:../v",
        "L1.resid=add:v/L1.resid=zero",
        "L1.attn_out=add:v/L1.attn_out=patch:B",
        "L0.resid_post=zero/L1.resid_pre=add:v",
        "L1=gain:inf",
        "L1=zero/",
        "/L1=zero",
        "L3.H1=zero/L3.H1=mean",
        "scale=off/L3.H1=scale:2",
        "heads=uniform/scale=off",
        "L3=zero@1-5/L3.H2=gain:2@5-9",
        "L99999999999=zero",
        "L0-9999999.H0-9999999=zero",
        "L0-4096=zero",
    ] {
        assert!(Edits::parse(text).is_err(), "{text:?} was read");
    }
    assert!(Edits::parse(&"L1.H1=zero/".repeat(1000)).is_err(), "too long");
    // Each range is possible; together they would be millions of layers.
    let ranges = ["0-4095"; 500].join(",");
    assert!(Edits::parse(&format!("L{ranges}=zero")).is_err(), "500 ranges of 4096 layers");
    assert!(Edits::parse("L0-4095=zero").is_ok());
    for text in ["L3=zero@1-5/L3.H2=gain:2@6-9", "mask=full/L3.H1=zero", "scale=off/temp=2", "L3.H1=zero/L3.H2=mean"] {
        assert!(Edits::parse(text).is_ok(), "{text:?} does not clash");
    }
}

#[test]
fn random_strings_are_read_or_refused_and_forms_are_stable() {
    let mut draws = regard_nn::random::Draws::at(11, &[]);
    let words = [
        "L",
        "H",
        "KV",
        ".",
        "=",
        "/",
        "@",
        "-",
        ",",
        ":",
        "~",
        "0",
        "1",
        "9",
        "zero",
        "mean",
        "scale",
        "off",
        "mask",
        "window",
        "first",
        "causal",
        "not",
        "and",
        "or",
        "heads",
        "gain",
        "temp",
        "patch",
        "add",
        "resid_mid",
        "*",
        "B",
        "mlp",
        "attn",
        "last",
        "all",
        "uniform",
        "hide",
        "e",
        "é",
        " ",
        "\0",
        "18446744073709551616",
    ];
    let mut read = 0;
    for _ in 0..100_000 {
        let text: String = (0..draws.below(12)).map(|_| words[draws.below(words.len())]).collect();
        if let Ok(edits) = Edits::parse(&text) {
            let form = edits.canonical();
            assert_eq!(canonical(&form), form, "{text:?}");
            read += 1;
        }
    }
    assert!(read > 100, "{read}: the strings are too wild to test anything");
}

fn logits(model: &Model, ids: &[u32], edits: &str, sources: &Sources) -> Vec<f32> {
    model.run(ids, &Edits::parse(edits).expect(edits), sources).expect(edits).logits().expect(edits).into_raw_vec_and_offset().0
}

#[test]
fn null_edits_change_exactly_nothing() {
    for name in ["llama3", "gpt2", "gpt_neox"] {
        let (golden, model) = (Golden::read(name), Model::load(folder(name)).expect(name));
        let mut sources = Sources::default();
        model.source(&mut sources, "A", &golden.ids).expect(name);
        let intact = logits(&model, &golden.ids, "", &sources);
        for edits in [
            "L1.H1=gain:1",
            "L1.mlp=gain:1",
            "temp=1",
            "mask=causal",
            "L0.H2=patch:A",
            "L0.H2=patch:A.q",
            "L0.H2=patch:A.k",
            "L1.H0=patch:A.v",
            "L1.H3=patch:A.weights",
            "L0.H1=patch:A@last",
            "L0.H1=mask:causal@3-7",
            "L1.attn_out=gain:1",
            "L1.resid_mid=gain:1",
        ] {
            assert_eq!(logits(&model, &golden.ids, edits, &sources), intact, "{name} {edits}");
        }
        assert_ne!(logits(&model, &golden.ids, "L1.H1=gain:1.0001", &sources), intact, "{name}");
    }
}

#[test]
fn what_matches_nothing_is_an_error() {
    let (golden, model) = (Golden::read("llama3"), Model::load(folder("llama3")).expect("llama3"));
    for edits in ["L2=zero", "L0.H4=zero", "L0.KV2=zero", "L0=zero@40-50", "L0.H1=patch:B", "L0.H1=mean"] {
        let error = model.run(&golden.ids, &Edits::parse(edits).expect(edits), &Sources::default()).expect_err(edits);
        assert!(error.to_string().contains(edits), "{error}");
    }
}

#[test]
fn heads_add_up_and_rows_are_edited_alone() {
    let (golden, model) = (Golden::read("llama3"), Model::load(folder("llama3")).expect("llama3"));
    let none = Sources::default();
    let run = |edits: &str| model.run(&golden.ids, &Edits::parse(edits).expect(edits), &none).expect(edits);
    let (intact, cut) = (run(""), run("L0.H2=zero@5-9"));
    let (z, edited) = (intact.z(0).expect("layer 0"), cut.z(0).expect("layer 0"));
    for head in 0..4 {
        for row in 0..golden.ids.len() {
            let (was, is) = (z.index_axis(Axis(0), head), edited.index_axis(Axis(0), head));
            if head == 2 && (5..=9).contains(&row) {
                assert!(is.row(row).iter().all(|x| *x == 0.0));
            } else {
                assert_eq!(is.row(row), was.row(row));
            }
        }
    }
    // Tokens before the edited rows do not change, for a model that reads forwards.
    let (a, b) = (intact.logits().expect("logits"), cut.logits().expect("logits"));
    assert_eq!(a.row(4), b.row(4));
    assert_ne!(a.row(5), b.row(5));
    // Means and rows of other texts: of one text, the mean is that of its rows.
    let sources =
        Sources { reference: Some(model.reference(std::slice::from_ref(&golden.ids)).expect("a text").into()), ..Sources::default() };
    let mean = model.run(&golden.ids, &Edits::parse("L0.H1=mean").expect("mean"), &sources).expect("mean");
    let want = z.index_axis(Axis(0), 1).mean_axis(Axis(0)).expect("rows");
    assert!(
        mean.z(0).expect("layer 0").index_axis(Axis(0), 1).outer_iter().all(|row| row.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-6))
    );
    let drawn = model.run(&golden.ids, &Edits::parse("L0.H1=resample:7").expect("resample"), &sources).expect("resample");
    let pool = z.index_axis(Axis(0), 1);
    assert!(drawn.z(0).expect("layer 0").index_axis(Axis(0), 1).outer_iter().all(|row| pool.outer_iter().any(|p| p == row)));
}

#[test]
fn patterns_are_what_they_are_called() {
    let (golden, model) = (Golden::read("gpt2"), Model::load(folder("gpt2")).expect("gpt2"));
    let weights = |edits: &str| {
        let run = model.run(&golden.ids, &Edits::parse(edits).expect(edits), &Sources::default()).expect(edits);
        (run.weights(1, 2).expect("weights"), run.weights(1, 3).expect("weights"))
    };
    let n = golden.ids.len();
    let plain = weights("");
    for (pattern, want) in [
        ("self", Box::new(|i: usize, j: usize| f32::from(i == j)) as Box<dyn Fn(usize, usize) -> f32>),
        ("previous", Box::new(|i, j| f32::from(i == j + 1 || (i == 0 && j == 0)))),
        ("first", Box::new(|_, j| f32::from(j == 0))),
        ("uniform", Box::new(|i, j| if j <= i { 1.0 / (i + 1) as f32 } else { 0.0 })),
    ] {
        let (edited, other) = weights(&format!("L1.H2={pattern}"));
        for i in 0..n {
            for j in 0..n {
                assert!((edited[[i, j]] - want(i, j)).abs() < 1e-6, "{pattern} {i} {j}: {}", edited[[i, j]]);
            }
        }
        assert_eq!(other, plain.1, "{pattern}: the head beside it");
    }
    let (hidden, _) = weights("L1.H2=hide:first");
    for i in 1..n {
        assert_eq!(hidden[[i, 0]], 0.0);
        let rest = 1.0 - plain.0[[i, 0]];
        assert!((1..=i).all(|j| (hidden[[i, j]] - plain.0[[i, j]] / rest).abs() < 1e-5), "row {i} is renormalised");
    }
    assert_eq!(hidden[[0, 0]], 1.0);
}

/// The same change by a function, at some rows.
pub(crate) struct Change<'c> {
    pub(crate) layer: usize,
    pub(crate) site: Site,
    pub(crate) rows: std::ops::RangeInclusive<usize>,
    /// Of head, row, element and column.
    pub(crate) change: &'c (dyn Fn(usize, usize, &mut f32, usize) + Sync),
}

impl Hook for Change<'_> {
    fn wants(&self, layer: usize, site: Site) -> bool {
        (layer, site) == (self.layer, self.site)
    }

    /// Rows are the last axis but one.
    fn at(&self, _: usize, _: Site, mut x: ArrayViewMutD<'_, f32>) -> bool {
        let axis = x.ndim() - 2;
        let inside = x.indexed_iter_mut().filter(|(at, _)| self.rows.contains(&at[axis]));
        inside.for_each(|(at, x)| (self.change)(at[0], at[axis], x, at[axis + 1]));
        true
    }
}

const ROWS: [Site; 5] = [Site::ResidPre, Site::ResidMid, Site::ResidPost, Site::AttnOut, Site::MlpOut];

/// The sites that edits name besides heads, and the results of heads.
fn sources_of_changes(model: &Model, vector: &[f32], head: &[f32]) -> Sources {
    let mut vectors = Vectors::default();
    vectors.insert("v", vector).expect("finite");
    vectors.insert("z", head).expect("finite");
    model.with_vectors(vectors).sources_of(&Edits::default()).expect("no reference")
}

#[test]
fn vectors_are_added_as_by_a_hook() {
    for name in ["llama3", "gpt2", "gpt_neox", "gemma2", "bert"] {
        let (golden, model) = (Golden::read(name), Model::load(folder(name)).expect(name));
        let vector: Vec<f32> = (0..model.width()).map(|i| (i as f32).sin()).collect();
        let head: Vec<f32> = (0..model.head_dim()).map(|i| (i as f32).cos()).collect();
        let sources = sources_of_changes(&model, &vector, &head);
        let intact = model.run(&golden.ids, &Edits::default(), &sources).expect(name);
        for site in ROWS {
            for layer in [0, model.shape().layers - 1] {
                let text = format!("L{layer}.{}=add:v*-1.5@2-4", site.name());
                let edited = model.run(&golden.ids, &Edits::parse(&text).expect(&text), &sources).expect(&text);
                let change = |_: usize, _: usize, x: &mut f32, at: usize| *x += -1.5 * vector[at];
                let hook = Change { layer, site, rows: 2..=4, change: &change };
                let by_hook = model.run_with(&golden.ids, &Edits::default(), &Sources::default(), &hook).expect(&text);
                assert_eq!(edited.hidden(), by_hook.hidden(), "{name} {text}");
                assert_ne!(edited.hidden(), intact.hidden(), "{name} {text}");
                // Twice the same place: the sum.
                let twice = Edits::parse(&format!("{text}/L{layer}.{}=add:v*0.5@2-4", site.name())).expect("a sum");
                let once = Edits::parse(&format!("L{layer}.{}=add:v*-1@2-4", site.name())).expect("one");
                let [twice, once] = [twice, once].map(|edits| model.run(&golden.ids, &edits, &sources).expect(name));
                let worst = twice.hidden().iter().zip(once.hidden()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-4, "{name} {text}: {worst}");
            }
        }
        let edited = model.run(&golden.ids, &Edits::parse("L1.H1=add:z*2").expect("z"), &sources).expect(name);
        let plain = intact.z(1).expect(name).index_axis(Axis(0), 1).to_owned();
        for (row, plain) in edited.z(1).expect(name).index_axis(Axis(0), 1).outer_iter().zip(plain.outer_iter()) {
            assert!(row.iter().zip(plain).zip(&head).all(|((x, plain), v)| *x == plain + 2.0 * v), "{name}");
        }
        // Of the width of a head, of the stream, and of no name.
        for text in ["L0.resid_pre=add:z", "L0.H0=add:v", "L0.resid_pre=add:w"] {
            let error = model.run(&golden.ids, &Edits::parse(text).expect(text), &sources).expect_err(text);
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}

#[test]
fn rows_are_patched_from_texts_runs_and_arrays() {
    for name in ["llama3", "gpt2", "gpt_neox"] {
        let (golden, model) = (Golden::read(name), Model::load(folder(name)).expect(name));
        let mut other = golden.ids.clone();
        other.rotate_left(3);
        for site in ROWS {
            let text = format!("L1.{}=patch:B@2-4", site.name());
            let edits = Edits::parse(&text).expect(&text);
            let mut sources = Sources::default();
            model.source_for(&edits, &mut sources, "B", &other).expect(&text);
            let (_, arrays) = model.record(&other, &|layer, of| layer == 1 && of == site).expect(&text);
            let theirs: ArrayD<f32> = arrays[&(1, site)].clone();
            let own = Sources { arrays: [("B".to_owned(), Arc::new(arrays))].into(), ..Sources::default() };
            let change = |_: usize, row: usize, x: &mut f32, at: usize| *x = theirs[[row, at]];
            let hook = Change { layer: 1, site, rows: 2..=4, change: &change };
            let by_hook = model.run_with(&golden.ids, &Edits::default(), &Sources::default(), &hook).expect(&text);
            for sources in [&sources, &own] {
                let edited = model.run(&golden.ids, &edits, sources).expect(&text);
                assert_eq!(edited.hidden(), by_hook.hidden(), "{name} {text}");
            }
            // A text that was run for its heads has no rows of the stream.
            let mut heads = Sources::default();
            model.source(&mut heads, "B", &other).expect(name);
            let error = model.run(&golden.ids, &edits, &heads).expect_err("no rows").to_string();
            assert!(error.contains(site.name()) && error.contains("layer 1"), "{error}");
        }
    }
}

#[test]
fn own_arrays_of_heads_stand_for_a_text() {
    let (golden, model) = (Golden::read("llama3"), Model::load(folder("llama3")).expect("llama3"));
    let mut other = golden.ids.clone();
    other.rotate_left(3);
    let run = model.run(&other, &Edits::default(), &Sources::default()).expect("a text");
    let mut text = Sources::default();
    model.source(&mut text, "B", &other).expect("a text");
    let arrays: Arrays = [
        ((1, Site::Q), run.q(1, true).expect("q").into_dyn()),
        ((1, Site::K), run.k(1, true).expect("k").into_dyn()),
        ((1, Site::V), run.v(1).expect("v").clone().into_dyn()),
        ((1, Site::Z), run.z(1).expect("z").clone().into_dyn()),
    ]
    .into();
    let sources = |arrays: Arrays| Sources { arrays: [("B".to_owned(), Arc::new(arrays))].into(), ..Sources::default() };
    let own = sources(arrays.clone());
    for edits in ["L1.H1=patch:B", "L1.H1=patch:B.q", "L1.KV1=patch:B.k", "L1=patch:B.v@3", "L1.H0=patch:B.weights"] {
        assert_eq!(logits(&model, &golden.ids, edits, &own), logits(&model, &golden.ids, edits, &text), "{edits}");
    }
    let refused = |arrays: Arrays, edits: &str, part: &str| {
        let error = model.run(&golden.ids, &Edits::parse(edits).expect(edits), &sources(arrays)).expect_err(edits).to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(arrays.clone(), "L0.H1=patch:B", "no z of layer 0");
    let mut wrong = arrays.clone();
    wrong.insert((1, Site::Z), arrays[&(1, Site::K)].clone());
    refused(wrong, "L1.H1=patch:B", "the shape");
    refused([((1, Site::Z), ArrayD::zeros(vec![]))].into(), "L1.H1=patch:B", "the shape");
    refused([((1, Site::Z), ArrayD::zeros(vec![4, 0, model.head_dim()]))].into(), "L1.H1=patch:B@last", "the shape");
}

#[test]
fn vectors_are_read_from_a_file_and_steer_what_is_written() {
    let folder_of = tempfile::tempdir().expect("a folder");
    let write = |name: &str, shape: Vec<usize>, numbers: &[f32]| {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, &bytes).expect("a tensor");
        let path = folder_of.path().join(name);
        safetensors::serialize_to_file([("v", view)], None, &path).expect("a file");
        path
    };
    let (golden, model) = (Golden::read("llama3"), Model::load(folder("llama3")).expect("llama3"));
    let vector: Vec<f32> = (0..model.width()).map(|i| 3.0 * (i as f32).sin()).collect();
    let vectors = Vectors::read(&write("v.safetensors", vec![1, model.width()], &vector)).expect("vectors");
    let mut same = Vectors::default();
    same.insert("v", &vector).expect("finite");
    assert_eq!(vectors, same);
    assert!(Vectors::read(&write("rows.safetensors", vec![2, model.width() / 2], &vector)).is_err());
    assert!(Vectors::read(&write("nan.safetensors", vec![2], &[1.0, f32::NAN])).is_err());
    assert!(Vectors::read(&folder("llama3").join("config.json")).is_err());
    let (model, plain) = (model.with_vectors(vectors), model);
    let edits = Edits::parse("L1.resid=add:v*2").expect("steering");
    let sources = model.sources_of(&edits).expect("vectors");
    let write = |model: &Model, edits: &Edits, sources: &Sources, cached: bool| {
        model.generate(&golden.ids, &Generation { cached, ..Generation::greedy(12) }, edits, sources, |_| true).expect("tokens")
    };
    let steered = write(&model, &edits, &sources, true);
    assert_eq!(steered, write(&model, &edits, &sources, false), "a token decoded alone is steered, too");
    assert_ne!(steered, write(&plain, &Edits::default(), &Sources::default(), true));
    assert!(plain.sources_of(&edits).is_ok_and(|sources| plain.run(&golden.ids, &edits, &sources).is_err()), "no vectors");
}
