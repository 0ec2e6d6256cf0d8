//! Cases of what some kernels take: softcap, ALiBi, sinks, lengths, positions, dropout, packed sequences, merges.

use super::super::problem::{Align, Partial, Problem, Segment};
use super::{Change, Maker, bias, float_mask, large, mask};
use crate::rng::Rng;

pub(super) fn softcaps(make: &mut Maker<'_>) {
    let cap = |p: &mut Problem, cap: f64| {
        p.softcap = Some(cap);
        p.q.iter_mut().for_each(|x| *x *= 2.0);
    };
    make.add("softcap 2", [1, 2, 2, 3, 5, 8, 8], &|p, _| cap(p, 2.0));
    make.add("softcap 30, scores of 50", [1, 2, 2, 3, 5, 16, 16], &|p, rng| {
        let d_out = p.d_out.take();
        large(p, rng, 4.0);
        (p.softcap, p.d_out) = (Some(30.0), d_out);
        p.q.iter_mut().for_each(|x| *x /= 4.0);
    });
    if make.takes.has("scale") {
        make.add("softcap 1.5, scale 0.5", [1, 1, 1, 3, 4, 8, 8], &|p, _| {
            cap(p, 1.5);
            p.scale = Some(0.5);
        });
    }
    if make.takes.has("causal") {
        make.add("softcap 2, causal", [1, 2, 2, 4, 4, 8, 8], &|p, _| {
            cap(p, 2.0);
            p.causal = true;
        });
    }
    if make.takes.has("mask") {
        make.add("softcap 2, mask", [1, 2, 2, 3, 5, 8, 8], &|p, rng| {
            cap(p, 2.0);
            mask(p, rng, [true, true, false]);
        });
    }
    if make.takes.has("bias") {
        make.add("softcap 2, bias", [1, 2, 2, 3, 4, 8, 8], &|p, rng| {
            cap(p, 2.0);
            bias(p, rng, [true, true, false]);
        });
        make.add("softcap 2, float mask", [1, 2, 2, 3, 4, 8, 8], &|p, rng| {
            cap(p, 2.0);
            float_mask(p, rng, [true, true, false]);
        });
    }
    if make.takes.has("window") {
        make.add("softcap 2, window 2 left, 1 right", [1, 1, 1, 6, 6, 8, 8], &|p, _| {
            cap(p, 2.0);
            p.window = Some([Some(2), Some(1)]);
        });
    }
}

pub(super) fn others(make: &mut Maker<'_>) {
    let takes = make.takes;
    if takes.has("alibi") {
        let slopes = |p: &mut Problem| p.alibi = Some((0..p.heads[0]).map(|h| 2f64.powi(-(h as i32) - 1)).collect());
        make.add("ALiBi, three heads", [1, 3, 3, 5, 5, 8, 8], &|p, _| slopes(p));
        make.add("ALiBi, three queries, six keys", [2, 2, 2, 3, 6, 8, 8], &|p, _| slopes(p));
        if takes.has("causal") {
            make.add("ALiBi, causal", [1, 3, 3, 4, 6, 8, 8], &|p, _| {
                slopes(p);
                p.causal = true;
            });
        }
        if takes.rank > 2 {
            make.add("ALiBi, four query heads, two key heads", [1, 4, 2, 3, 4, 8, 8], &|p, _| slopes(p));
        }
    }
    if takes.has("sinks") {
        let sinks = |p: &mut Problem, by: f64| p.sinks = Some((0..p.heads[0]).map(|h| by + 0.5 * h as f64).collect());
        make.add("sinks", [1, 3, 3, 3, 4, 8, 8], &|p, _| sinks(p, 0.5));
        make.add("sinks, square", [2, 2, 2, 4, 4, 8, 8], &|p, _| sinks(p, 2.0));
        if takes.has("causal") {
            make.add("sinks, causal", [1, 2, 2, 4, 4, 8, 8], &|p, _| {
                sinks(p, 1.0);
                p.causal = true;
            });
        }
        make.add("sinks, large scores", [1, 2, 2, 3, 4, 8, 8], &|p, _| {
            sinks(p, 1.5);
            p.q.iter_mut().for_each(|x| *x *= 4.0);
        });
        make.hard("sinks of 200", [1, 2, 2, 3, 4, 8, 8], &|p, _| sinks(p, 200.0));
    }
    if takes.has("lengths") {
        let lengths = |p: &mut Problem, all: &[usize]| p.lengths = Some((0..p.segments.len()).map(|s| all[s % all.len()]).collect());
        make.add("key lengths 6, 3, 1", [3, 2, 2, 2, 6, 8, 8], &|p, _| {
            lengths(p, &[6, 3, 1]);
            p.causal = false;
        });
        make.add("key lengths 2, 5", [2, 2, 2, 3, 5, 8, 8], &|p, _| lengths(p, &[2, 5]));
        make.add("one query, key lengths 70, 33", [2, 2, 2, 1, 140, 8, 8], &|p, _| lengths(p, &[70, 33]));
        if takes.has("causal") && takes.align == Align::BottomRight {
            make.add("causal, key lengths 6, 4", [2, 2, 2, 3, 8, 8, 8], &|p, _| {
                lengths(p, &[6, 4]);
                p.causal = true;
            });
            make.add("causal, one query, key lengths 5, 3", [2, 2, 2, 1, 7, 8, 8], &|p, _| {
                lengths(p, &[5, 3]);
                p.causal = true;
            });
        }
        make.hard("NaN in padding", [2, 1, 1, 2, 4, 8, 8], &|p, _| {
            lengths(p, &[2, 3]);
            (p.hidden_nan, p.d_out) = (true, None);
            let width = p.dims[1];
            p.v[3 * width] = f64::NAN;
        });
        make.hard("NaN in keys of padding", [2, 1, 1, 2, 4, 8, 8], &|p, _| {
            lengths(p, &[2, 3]);
            (p.hidden_nan, p.d_out) = (true, None);
            let width = p.dims[0];
            p.k[3 * width] = f64::NAN;
        });
    }
    if takes.has("paged") {
        let pages = |p: &mut Problem, all: &[usize]| {
            (p.paged, p.d_out) = (true, None);
            if takes.has("lengths") {
                p.lengths = Some((0..p.segments.len()).map(|s| all[s % all.len()]).collect());
            }
        };
        make.add("pages, key lengths 40, 21, 16", [3, 2, 2, 2, 40, 8, 8], &|p, _| pages(p, &[40, 21, 16]));
        make.add("pages, one query, key lengths 9, 50", [2, 2, 2, 1, 50, 8, 8], &|p, _| pages(p, &[9, 50]));
        if takes.rank > 2 {
            make.add("pages, four query heads, two key heads", [2, 4, 2, 1, 33, 8, 8], &|p, _| pages(p, &[33, 20]));
        }
        if takes.has("causal") && takes.align == Align::BottomRight {
            make.add("pages, causal, key lengths 30, 19", [2, 2, 2, 4, 32, 8, 8], &|p, _| {
                pages(p, &[30, 19]);
                p.causal = true;
            });
        }
    }
    if takes.has("offset") {
        make.add("two queries at position 3 of 8", [1, 2, 2, 2, 8, 8, 8], &|p, _| (p.causal, p.offset) = (true, Some(3)));
        make.add("one query at position 5 of 9", [1, 2, 2, 1, 9, 8, 8], &|p, _| (p.causal, p.offset) = (true, Some(5)));
        make.add("four queries at position 2 of 6", [2, 2, 2, 4, 6, 8, 8], &|p, _| (p.causal, p.offset) = (true, Some(2)));
        make.add("queries at position 0", [1, 2, 2, 3, 3, 8, 8], &|p, _| (p.causal, p.offset) = (true, Some(0)));
        make.add("20 queries at position 70 of 90", [1, 1, 1, 20, 90, 8, 8], &|p, _| (p.causal, p.offset) = (true, Some(70)));
    }
    if takes.has("dropout") {
        make.add("dropout 0.25", [2, 2, 2, 8, 8, 8, 8], &|p, _| {
            p.dropout = 0.25;
            let (h, hk, dv) = (p.heads[0], p.heads[1], p.dims[1]);
            // Values and gradients are unit vectors: the results are the weights that were kept.
            for (at, x) in p.v.iter_mut().enumerate() {
                *x = f64::from(u8::from(at % dv == at / (dv * hk) % 8));
            }
            if let Some(d_out) = &mut p.d_out {
                for (at, x) in d_out.iter_mut().enumerate() {
                    *x = f64::from(u8::from(at % dv == at / (dv * h) % 8));
                }
            }
        });
    }
    if takes.has("k_scale") {
        let scales = |p: &mut Problem, rng: &mut Rng| {
            p.k.iter_mut().for_each(|x| *x = (*x * 30.0).round().clamp(-127.0, 127.0));
            p.k_scale = Some((0..p.k.len() / p.dims[0]).map(|_| f64::from(((rng.uniform() + 0.5) / 16.0) as f32)).collect());
        };
        make.add("scales of k per row", [1, 2, 2, 3, 6, 8, 8], &|p, rng| scales(p, rng));
        make.add("scales of k per row, 150 keys", [1, 1, 1, 3, 150, 8, 8], &|p, rng| scales(p, rng));
    }
}

pub(super) fn packed(make: &mut Maker<'_>) {
    let takes = make.takes;
    let mut add = |label: &str, queries: &[usize], keys: &[usize], change: Change<'_>| {
        let heads = [2, 2];
        let (total_q, total_k): (usize, usize) = (queries.iter().sum(), keys.iter().sum());
        make.add(label, [1, heads[0], heads[1], total_q, total_k, 8, 8], &|p, rng| {
            p.packed = true;
            let (mut q0, mut k0) = (0, 0);
            p.segments.clear();
            for (n, m) in queries.iter().zip(keys) {
                p.segments.push(Segment { q0, n: *n, k0, m: *m });
                (q0, k0) = (q0 + n, k0 + m);
            }
            change(p, rng);
            let blind = (0..p.segments.len()).any(|s| (0..p.segments[s].n).any(|i| p.blind(s, 0, i)));
            p.hard |= blind;
            if blind {
                p.d_out = None;
            }
        });
    };
    add("one sequence", &[4], &[5], &|_, _| {});
    add("three sequences of equal lengths", &[3, 1, 5], &[3, 1, 5], &|_, _| {});
    add("three sequences", &[3, 1, 5], &[4, 2, 6], &|_, _| {});
    // Three sequences of one query: with two, a log-sum-exp could be [heads, tokens] or [tokens, heads].
    add("one query each", &[1, 1, 1], &[4, 9, 6], &|_, _| {});
    add("33 and 20 queries, 150 and 90 keys", &[33, 20], &[150, 90], &|_, _| {});
    add("four sequences, 70 and 33 keys", &[2, 7, 3, 4], &[70, 7, 33, 5], &|_, _| {});
    if takes.has("scale") {
        add("scale 0.3", &[3, 2], &[4, 3], &|p, _| p.scale = Some(0.3));
    }
    if takes.has("causal") {
        add("causal, equal lengths", &[3, 1, 5], &[3, 1, 5], &|p, _| p.causal = true);
        add("causal, more keys than queries", &[3, 1, 2], &[5, 4, 3], &|p, _| p.causal = true);
        add("causal, more queries than keys", &[4, 2], &[2, 3], &|p, _| p.causal = true);
        add("causal, 40 and 70 tokens", &[40, 70], &[40, 70], &|p, _| p.causal = true);
    }
    if takes.has("window") {
        add("window 2 left, 1 right", &[6, 5], &[6, 5], &|p, _| p.window = Some([Some(2), Some(1)]));
        add("causal window 2 left", &[4, 5], &[7, 5], &|p, _| (p.window, p.causal) = (Some([Some(2), Some(0)]), takes.has("causal")));
    }
    if takes.has("window") {
        add("window 20 left, 10 right, 90 and 45 tokens", &[90, 45], &[90, 45], &|p, _| p.window = Some([Some(20), Some(10)]));
        add("window 3 left, one query each", &[1, 1, 1], &[5, 7, 4], &|p, _| p.window = Some([Some(3), Some(0)]));
        add("window 2 left, 1 right, more keys", &[3, 2], &[6, 7], &|p, _| p.window = Some([Some(2), Some(1)]));
    }
    if takes.has("window") && takes.has("causal") {
        add("causal window 30 left, 100 and 40 tokens", &[100, 40], &[100, 40], &|p, _| {
            (p.window, p.causal) = (Some([Some(30), Some(0)]), true);
        });
    }
    if takes.has("causal") {
        add("causal, one query each", &[1, 1, 1], &[5, 70, 3], &|p, _| p.causal = true);
        add("causal, 3 and 20 queries, 90 and 40 keys", &[3, 20], &[90, 40], &|p, _| p.causal = true);
    }
    if takes.has("softcap") {
        add("softcap 1, one query each", &[1, 1, 1], &[4, 6, 3], &|p, _| p.softcap = Some(1.0));
        add("softcap 1", &[3, 2], &[4, 3], &|p, _| p.softcap = Some(1.0));
        add("softcap 1, causal", &[3, 2], &[3, 2], &|p, _| (p.softcap, p.causal) = (Some(1.0), takes.has("causal")));
    }
    if takes.has("alibi") {
        add("ALiBi", &[3, 2], &[4, 3], &|p, _| p.alibi = Some(vec![0.5, 0.25]));
        add("ALiBi, one query each", &[1, 1, 1], &[4, 7, 2], &|p, _| p.alibi = Some(vec![0.5, 0.25]));
    }
    let grouped = [1, 4, 2, 5, 5, 8, 8];
    make.add("four query heads, two key heads", grouped, &|p, _| {
        p.packed = true;
        p.segments = vec![Segment { q0: 0, n: 3, k0: 0, m: 3 }, Segment { q0: 3, n: 2, k0: 3, m: 2 }];
    });
    make.add("six query heads, two key heads, causal if taken", [1, 6, 2, 7, 7, 8, 8], &|p, _| {
        (p.packed, p.causal) = (true, takes.has("causal"));
        p.segments = vec![Segment { q0: 0, n: 4, k0: 0, m: 4 }, Segment { q0: 4, n: 3, k0: 4, m: 3 }];
    });
    make.hard("NaN in the other sequence", [1, 1, 1, 5, 5, 8, 8], &|p, _| {
        p.packed = true;
        p.segments = vec![Segment { q0: 0, n: 3, k0: 0, m: 3 }, Segment { q0: 3, n: 2, k0: 3, m: 2 }];
        (p.hidden_nan, p.d_out) = (true, None);
        let last = p.v.len() - 1;
        p.v[last] = f64::NAN;
    });
}

pub(super) fn merges(make: &mut Maker<'_>) {
    let takes = make.takes;
    let mut add = |label: &str, hard: bool, lse: &dyn Fn(usize, &mut Rng) -> [f64; 2]| {
        make.add(label, [1, 2, 2, 4, 4, 8, 8], &|p, rng| {
            let rows = 4 * p.heads[0];
            let out = |rng: &mut Rng| rng.normals(rows * 8).into_iter().map(f64::from).collect::<Vec<f64>>();
            let pairs: Vec<[f64; 2]> = (0..rows).map(|row| lse(row, rng)).collect();
            let lses = [0, 1].map(|side| pairs.iter().map(|pair| takes.precision.store(pair[side])).collect());
            let mut outs = [out(rng), out(rng)];
            for (side, all) in outs.iter_mut().enumerate() {
                for (row, pair) in pairs.iter().enumerate().filter(|(_, pair)| pair[side] == f64::NEG_INFINITY) {
                    let _ = pair;
                    all[row * 8..(row + 1) * 8].fill(0.0);
                }
            }
            p.merge = Some(Partial { out: outs, lse: lses });
            (p.hard, p.d_out, p.lse) = (hard, None, takes.has("lse"));
        });
    };
    let normal = |rng: &mut Rng| f64::from(rng.normal());
    add("two states", false, &|_, rng| [normal(rng), normal(rng)]);
    add("two states, one larger", false, &|_, rng| [normal(rng) + 3.0, normal(rng)]);
    add("two states, sums of 5", false, &|_, rng| [normal(rng) + 5.0, normal(rng) + 5.0]);
    add("one state is empty", true, &|row, rng| {
        if row % 2 == 0 { [f64::NEG_INFINITY, normal(rng)] } else { [normal(rng), f64::NEG_INFINITY] }
    });
    add("both states are empty", true, &|row, rng| if row == 1 { [f64::NEG_INFINITY; 2] } else { [normal(rng), normal(rng)] });
    add("sums of 1000", true, &|_, rng| [normal(rng) + 1000.0, normal(rng) + 1000.0]);
    add("sums of -1000", true, &|_, rng| [normal(rng) - 1000.0, normal(rng) - 1000.0]);
}
