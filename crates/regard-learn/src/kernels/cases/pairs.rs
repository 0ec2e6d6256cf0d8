//! Cases of two features at a time, and of each with one query, long sequences and grouped heads: mistakes often need a second
//! feature to be made.

use super::super::problem::{Align, Problem};
use super::{Maker, Sizes, bias, mask};
use crate::rng::Rng;

/// A feature, and how a problem gets it.
type Feature = (&'static str, fn(&mut Problem, &mut Rng));

const FEATURES: &[Feature] = &[
    ("causal", |p, _| p.causal = true),
    ("scale", |p, _| p.scale = Some(0.25)),
    ("mask", |p, rng| mask(p, rng, [false, true, false])),
    ("bias", |p, rng| bias(p, rng, [false, false, false])),
    ("window", |p, _| p.window = Some([Some(2), Some(1)])),
    ("softcap", |p, _| p.softcap = Some(1.5)),
    ("alibi", |p, _| p.alibi = Some((0..p.heads[0]).map(|h| 0.5 / (h + 1) as f64).collect())),
    ("sinks", |p, _| p.sinks = Some((0..p.heads[0]).map(|h| 0.5 * h as f64 - 0.25).collect())),
    ("lengths", |p, _| p.lengths = Some(p.segments.iter().enumerate().map(|(s, one)| one.m - (s + one.m / 3) % one.m.max(1)).collect())),
    ("offset", |p, _| (p.causal, p.offset) = (true, Some(p.segments[0].m.saturating_sub(p.segments[0].n).saturating_sub(1)))),
    ("k_scale", |p, rng| {
        p.k.iter_mut().for_each(|x| *x = (*x * 30.0).round().clamp(-127.0, 127.0));
        p.k_scale = Some((0..p.k.len() / p.dims[0]).map(|_| f64::from(((rng.uniform() + 0.5) / 16.0) as f32)).collect());
    }),
];

/// Whether a kernel that takes both features takes them at once.
fn together(make: &Maker<'_>, a: &str, b: &str) -> bool {
    let takes = make.takes;
    match (a, b) {
        ("mask", "bias") => takes.has("mask+bias"),
        // Without an alignment the positions of both are not defined.
        ("lengths", "offset") => false,
        ("causal" | "window" | "alibi", "lengths") => takes.align == Align::BottomRight,
        ("causal", "mask" | "bias") => takes.has("causal+mask"),
        ("causal" | "window", "offset") => a == "window",
        _ => true,
    }
}

/// What is true of a problem with all of its features.
fn settle(p: &mut Problem) {
    // A window beside the causal mask ends at the query.
    if let (true, Some(window)) = (p.causal, &mut p.window) {
        window[1] = Some(0);
    }
    let blind = (0..p.segments.len()).any(|s| (0..p.heads[0]).any(|h| (0..p.segments[s].n).any(|i| p.blind(s, h, i))));
    if blind {
        (p.hard, p.d_out) = (true, None);
    }
}

fn add(make: &mut Maker<'_>, size: &str, sizes: Sizes, features: &[&Feature]) {
    let names: Vec<&str> = features.iter().map(|one| one.0).collect();
    make.add(&format!("{}, {size}", names.join(" and ")), sizes, &|p, rng| {
        features.iter().for_each(|one| one.1(p, rng));
        settle(p);
    });
}

pub(super) fn pairs(make: &mut Maker<'_>) {
    let takes = make.takes;
    // A window of a kernel that takes its left side only is causal.
    let one_sided = !takes.has("window") && takes.has("window_left");
    let taken = |name: &str| takes.has(name) || (name == "window" && one_sided && takes.has("causal"));
    let features: Vec<&Feature> = FEATURES.iter().filter(|one| taken(one.0)).collect();
    let causal = FEATURES.iter().find(|one| one.0 == "causal");
    let whole = |list: &[&'static Feature]| -> Vec<&'static Feature> {
        let sided = one_sided && list.iter().any(|one| one.0 == "window") && !list.iter().any(|one| one.0 == "causal");
        causal.filter(|_| sided).into_iter().chain(list.iter().copied()).collect()
    };
    for one in &features {
        let list = whole(&[one]);
        if list.len() > 1 && !together(make, list[0].0, list[1].0) {
            continue;
        }
        add(make, "one query, nine keys", [2, 2, 2, 1, 9, 8, 8], &list);
        add(make, "three queries, 70 keys", [1, 1, 1, 3, 70, 8, 8], &list);
        // Positions decide where the loops of kernels begin and end.
        if ["causal", "window", "offset"].contains(&one.0) {
            add(make, "70 queries and keys", [1, 1, 1, 70, 70, 8, 8], &list);
            add(make, "20 queries, 150 keys", [1, 1, 1, 20, 150, 8, 8], &list);
        }
        if takes.rank > 2 {
            add(make, "six query heads, two key heads", [2, 6, 2, 3, 5, 8, 8], &list);
            add(make, "one query, four query heads, two key heads", [1, 4, 2, 1, 5, 8, 8], &list);
        }
    }
    for (at, a) in features.iter().enumerate() {
        for b in &features[at + 1..] {
            if together(make, a.0, b.0) {
                add(make, "five queries, seven keys", [2, 2, 2, 5, 7, 8, 8], &whole(&[a, b]));
                add(make, "one query, six keys", [1, 2, 2, 1, 6, 8, 8], &whole(&[a, b]));
            }
        }
    }
}
