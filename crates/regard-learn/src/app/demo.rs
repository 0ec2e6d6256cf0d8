//! Demonstrations after a pass, with the learner's own function: a heat map, the sweep over d, a stream of 10,000 keys.

use crate::exercise::{Exercise, Lang};
use crate::rng::Rng;
use crate::runner::{Builds, Runner, Start};
use crate::show::Look;
use crate::show::picture::{Map, labelled};
use crate::value::{Call, Value, array, number};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Expectations of entropy, largest weight and slack of a row of 8 keys, without and with the scale, by quadrature; checked against the
/// laboratory's in the tests of the command.
pub const EXPECTED: [(usize, [f64; 3], [f64; 3]); 4] = [
    (4, [1.28766, 0.52721, 0.60353], [1.74770, 0.34339, 0.77362]),
    (16, [0.67279, 0.74822, 0.34780], [1.72896, 0.35645, 0.76930]),
    (64, [0.31828, 0.87493, 0.17741], [1.72365, 0.35999, 0.76810]),
    (256, [0.15291, 0.93790, 0.08893], [1.72227, 0.36090, 0.76779]),
];

/// An answer that passed.
pub struct Answer<'a> {
    /// The exercise.
    pub exercise: &'static Exercise,
    /// Its language.
    pub lang: Lang,
    /// The learner's file.
    pub file: &'a Path,
    /// The Python that runs it.
    pub python: Option<&'a Path>,
    /// Where Rust answers are compiled.
    pub builds: &'a Builds,
}

/// Lines that show the function at work; none where the exercise has no demonstration, or the function fails.
pub fn work(answer: &Answer<'_>, look: Look) -> Vec<String> {
    let Answer { exercise, lang, file, python, builds } = *answer;
    let stop = AtomicBool::new(false);
    let show: fn(&mut Runner<'_>, Look) -> Option<Vec<String>> = match exercise.name {
        "attention" => heat_map,
        "saturation" => sweep,
        "absorb" => stream,
        _ => return Vec::new(),
    };
    let Ok(mut runner) = Runner::start(&Start { exercise, lang, file, python, builds, stop: &stop }) else { return Vec::new() };
    show(&mut runner, look).unwrap_or_default()
}

/// Attention in a sentence with made-up vectors: equal words have equal vectors, words of a kind similar ones.
fn heat_map(runner: &mut Runner<'_>, look: Look) -> Option<Vec<String>> {
    let words = ["the", "cat", "sat", "on", "the", "mat", "and", "the", "dog", "lay"];
    let kinds = ["the on and", "cat dog mat", "sat lay"];
    let d = 16;
    let vector = |word: &str| {
        let kind = kinds.iter().position(|list| list.split(' ').any(|w| w == word)).unwrap_or(0);
        let (mut of_kind, mut of_word) = (Rng::new(kind as u64, "kind"), Rng::new(7, word));
        (0..d).map(|_| 1.2 * of_kind.normal() + 0.8 * of_word.normal()).collect::<Vec<f32>>()
    };
    let x = array(&[words.len(), d], words.iter().flat_map(|w| vector(w)).collect());
    let (n, scale) = (words.len(), 1.0 / (d as f64).sqrt());
    let call = Call { dims: vec![n, n, d, d], args: vec![x.clone(), x.clone(), x, number(scale)] };
    let results = runner.call(&call, false).ok()?;
    let map = Map::of("", results.get(1)?);
    if map.rows != n || map.cols != n {
        return None;
    }
    let mut lines = vec!["your attention, in percent of each row:".to_owned()];
    lines.extend(labelled(&map, &words, &words, look.colour));
    Some(lines)
}

/// Entropy, largest weight and slack against d, with and without the scale.
fn sweep(runner: &mut Runner<'_>, _: Look) -> Option<Vec<String>> {
    let (t, n) = (60, 8);
    let mut lines = vec![
        format!("your measurement of {t} draws, 8 queries and 8 keys each (in brackets: exact):"),
        "   d scale    entropy             largest weight      slack".to_owned(),
    ];
    for (d, without, with) in EXPECTED {
        for (name, scale, exact) in [("1", 1.0, without), ("1/sqrt d", 1.0 / (d as f64).sqrt(), with)] {
            let mut rng = Rng::new(d as u64, "sweep");
            let draw = |rng: &mut Rng| array(&[t, n, d], rng.normals(t * n * d));
            let args = vec![draw(&mut rng), draw(&mut rng), number(scale)];
            let table = runner.call(&Call { dims: vec![t, n, n, d], args }, false).ok()?.into_iter().next()?;
            let cell = |row: usize| format!("{:.3}±{:.3} ({:.3})", table.data[3 * row], table.data[3 * row + 1], exact[row]);
            lines.push(format!("{d:>4} {name:<8} {:<19} {:<19} {}", cell(0), cell(1), cell(2)));
        }
    }
    lines.push("without the scale one key takes nearly all as d grows; with it hardly anything changes".to_owned());
    Some(lines)
}

/// 10,000 keys in tiles of 250, against softmax over all of them at once.
fn stream(runner: &mut Runner<'_>, _: Look) -> Option<Vec<String>> {
    let (n, keys, tile, dv) = (2, 10_000, 250, 3);
    let mut rng = Rng::new(1, "stream");
    let scores = array(&[n, keys], rng.normals(n * keys).iter().map(|x| 4.0 * x).collect());
    let v = array(&[keys, dv], rng.normals(keys * dv));
    let mut state =
        vec![Value::new(&[n], vec![f64::NEG_INFINITY; n]), Value::new(&[n], vec![0.0; n]), Value::new(&[n, dv], vec![0.0; n * dv])];
    for from in (0..keys).step_by(tile) {
        let part = (0..n * tile).map(|at| scores.data[at / tile * keys + from + at % tile]).collect();
        let mut args = state.clone();
        args.extend([Value::new(&[n, tile], part), v.slice(from, from + tile)]);
        state = runner.call(&Call { dims: vec![n, tile, dv], args }, false).ok()?;
    }
    let mut error: f64 = 0.0;
    for at in 0..n * dv {
        let row = scores.row(at / dv);
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = row.iter().map(|s| (s - top).exp()).sum();
        let exact: f64 = row.iter().enumerate().map(|(j, s)| (s - top).exp() / total * v.data[j * dv + at % dv]).sum();
        error = error.max((state[2].data.get(at)? / state[1].data.get(at / dv)? - exact).abs());
    }
    Some(vec![format!(
        "your function took in {keys} keys in tiles of {tile} and kept {} values per row; its largest error is {error:.1e} against \
            softmax over all keys",
        2 + dv
    )])
}
