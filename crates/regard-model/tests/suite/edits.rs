//! The grammar, and edits at work.

use crate::golden::{Golden, folder};
use ndarray::Axis;
use regard_model::{Edits, Model, Sources};

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
