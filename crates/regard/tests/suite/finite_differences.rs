//! Gradients by their definition: the change of a loss, divided by the change of one number. In f64, for every number of q, k, v, of the
//! bias and of the sinks.

use crate::common::oracle::{Bias, Mask, Options};
use crate::common::{Inputs, Normal, Shape, bias_numbers, d_out_for, gradients, textbook};
use ndarray::{Array2, Array4};

/// Numbers of a bias are multiples of it, so that a step is exact in f32 too.
const STEP: f64 = 1.0 / 512.0;

/// A loss that is linear in the result, and which keys each row sees.
struct Loss {
    value: f64,
    seen: Vec<bool>,
}

fn loss(options: &Options, x: &Inputs<f64>, d_out: &Array4<f64>) -> Loss {
    let exact = textbook(options, x);
    Loss { value: (&exact.out * d_out).sum(), seen: exact.visible.into_iter().collect() }
}

/// By four points: the error is of the fourth order in the step. `None` where the step changes which keys are seen, as top-k may.
fn slope(at: &mut dyn FnMut(f64) -> Loss) -> Option<f64> {
    let all = [-2.0, -1.0, 1.0, 2.0].map(|n| at(n * STEP));
    if all.iter().any(|l| l.seen != all[0].seen) {
        return None;
    }
    let [a, b, c, d] = all.map(|l| l.value);
    Some((8.0 * (c - b) - (d - a)) / (12.0 * STEP))
}

/// Compares gradients with slopes, and counts.
#[derive(Default)]
struct Tally {
    compared: usize,
    left_out: usize,
}

impl Tally {
    fn compare(&mut self, what: &str, got: f64, slope: Option<f64>, tolerance: f64) {
        match slope {
            None => self.left_out += 1,
            Some(slope) => {
                self.compared += 1;
                assert!((got - slope).abs() <= tolerance * (1.0 + slope.abs()), "{what}: {got} for a slope of {slope}");
            }
        }
    }
}

/// dq, dk and dv. `options` are as they are.
fn check(what: &str, options: &Options, s: Shape) {
    let x = Inputs::<f64>::normal(s, 3);
    let d_out = d_out_for(&x, 4);
    let got = gradients(&options.attention(), &x, &d_out);
    let mut tally = Tally::default();
    type Part = fn(&mut Inputs<f64>) -> &mut Array4<f64>;
    let parts: [(&str, &Array4<f64>, Part); 3] =
        [("dq", &got.dq, |x| &mut x.q), ("dk", &got.dk, |x| &mut x.k), ("dv", &got.dv, |x| &mut x.v)];
    for (name, got, part) in parts {
        let mut moved = x.clone();
        for ((b, h, n, d), &got) in got.indexed_iter() {
            let at = [b, h, n, d];
            let here = part(&mut moved)[at];
            let slope = slope(&mut |step| {
                part(&mut moved)[at] = here + step;
                loss(options, &moved, &d_out)
            });
            part(&mut moved)[at] = here;
            tally.compare(&format!("{name} at {at:?}, {what}, {s:?}"), got, slope, 1e-8);
        }
    }
    assert!(tally.compared > 10 * tally.left_out && tally.compared > 0, "{what}: {} left out", tally.left_out);
}

const SHAPES: [Shape; 4] = [
    Shape::single(5, 7, 3).heads(4, 2).values(2),
    Shape::single(4, 6, 2).heads(3, 1).values(5),
    Shape::single(3, 9, 4).batch(2),
    Shape::single(8, 3, 2),
];

#[test]
fn plain_and_masked_gradients_are_slopes() {
    for s in SHAPES {
        check("full", &Options::new(), s);
        check("causal", &Options::new().causal(), s);
        check("bottom right", &Options::new().causal_bottom_right(), s);
        check("window and sinks", &Options::new().mask(Mask::Window(Some(1), Some(0)) | Mask::FirstKeys(1)), s);
    }
}

#[test]
fn gradients_at_any_scale_are_slopes() {
    for s in SHAPES {
        for scale in [1.0, -0.8, 0.0, 2.5] {
            check(&format!("scale {scale}"), &Options::new().scale(scale), s);
        }
    }
}

#[test]
fn gradients_through_a_softcap_are_slopes() {
    for s in SHAPES {
        for cap in [0.7, 3.0] {
            check(&format!("softcap {cap}"), &Options::new().softcap(cap).scale(1.0).causal_bottom_right(), s);
        }
    }
}

#[test]
fn gradients_through_dropout_are_slopes() {
    for s in SHAPES {
        for (p, seed) in [(0.3, 1), (0.9, 77)] {
            check(&format!("dropout {p}"), &Options::new().dropout(p, seed), s);
        }
    }
}

#[test]
fn gradients_of_top_k_are_slopes() {
    for s in SHAPES {
        check("top 2", &Options::new().top_k(2), s);
        check("top 2, causal", &Options::new().causal_bottom_right().top_k(2), s);
    }
}

fn sixty_fourths(shape: [usize; 4], seed: u64) -> Array4<f64> {
    let mut numbers = Normal::new(seed);
    Array4::from_shape_simple_fn(shape, || (numbers.number() * 64.0).round() / 64.0)
}

/// The gradient of the `n` numbers of a bias; `with` makes the options, with a step added to one of them.
fn check_bias(what: &str, s: Shape, n: usize, tolerance: f64, with: impl Fn(Option<(usize, f64)>) -> Options) {
    let x = Inputs::<f64>::normal(s, 5);
    let d_out = d_out_for(&x, 6);
    let got = bias_numbers(&gradients(&with(None).attention(), &x, &d_out));
    assert_eq!(got.len(), n, "{what}");
    let mut tally = Tally::default();
    for (at, &got) in got.iter().enumerate() {
        let slope = slope(&mut |step| loss(&with(Some((at, step))), &x, &d_out));
        tally.compare(&format!("number {at} of {what}, {s:?}"), got, slope, tolerance);
    }
    assert!(tally.compared > 0 && tally.left_out == 0);
    check(what, &with(None), s);
}

#[test]
fn the_gradient_of_a_dense_bias_is_its_slope_in_every_broadcast_shape() {
    let s = Shape::single(3, 5, 2).batch(2).heads(2, 1);
    for bits in 0..16 {
        let full = s.scores();
        let shape: [usize; 4] = std::array::from_fn(|a| if bits >> a & 1 == 1 { full[a] } else { 1 });
        let bias = sixty_fourths(shape, bits);
        let moved = |step: Option<(usize, f64)>| {
            let mut bias = bias.clone();
            if let Some((at, step)) = step {
                bias.as_slice_mut().expect("plain")[at] += step;
            }
            bias
        };
        let options = || Options::new().softcap(2.0).dropout(0.2, 3).causal_bottom_right();
        // In f32 the gradient is rounded.
        check_bias(&format!("bias {shape:?}"), s, bias.len(), 1e-6, |step| options().bias(Bias::Dense(moved(step).mapv(|x| x as f32))));
        check_bias(&format!("f64 bias {shape:?}"), s, bias.len(), 1e-8, |step| options().bias(Bias::Dense64(moved(step))));
    }
}

#[test]
fn the_gradient_of_alibi_slopes_is_their_slope() {
    for s in SHAPES {
        for offset in [0, 2, -1] {
            check_bias(&format!("alibi, offset {offset}"), s, s.heads_q, 1e-8, |step| {
                let mut slopes: Vec<f64> = (0..s.heads_q).map(|h| 0.5 - 0.2 * h as f64).collect();
                if let Some((at, step)) = step {
                    slopes[at] += step;
                }
                Options::new().bias(Bias::Alibi(slopes)).q_offset(offset).softcap(4.0)
            });
        }
    }
}

#[test]
fn the_gradient_of_a_table_of_distances_is_its_slope() {
    for s in SHAPES {
        for rows in [1, s.heads_q] {
            for reach in [0, 2, 9] {
                let cols = 2 * reach + 1;
                let table = sixty_fourths([1, 1, rows, cols], 4);
                check_bias(&format!("{rows} rows of {cols} distances"), s, rows * cols, 1e-6, |step| {
                    let mut table = Array2::from_shape_fn((rows, cols), |(h, c)| table[[0, 0, h, c]] as f32);
                    if let Some((at, step)) = step {
                        table[[at / cols, at % cols]] += step as f32;
                    }
                    Options::new().bias(Bias::Relative(table)).q_offset(1).dropout(0.1, 2)
                });
            }
        }
    }
}

#[test]
fn the_gradient_of_sinks_is_their_slope() {
    for s in SHAPES {
        let with = |step: Option<(usize, f64)>| {
            let mut logits: Vec<f64> = (0..s.heads_q).map(|h| 0.7 * h as f64 - 0.5).collect();
            if let Some((at, step)) = step {
                logits[at] += step;
            }
            Options::new().sink(logits).causal_bottom_right().dropout(0.2, 8)
        };
        let x = Inputs::<f64>::normal(s, 5);
        let d_out = d_out_for(&x, 6);
        let got = gradients(&with(None).attention(), &x, &d_out).d_sink.expect("there are sinks");
        let mut tally = Tally::default();
        for (at, &got) in got.iter().enumerate() {
            let slope = slope(&mut |step| loss(&with(Some((at, step))), &x, &d_out));
            tally.compare(&format!("sink {at}, {s:?}"), got, slope, 1e-8);
        }
        assert_eq!((tally.compared, tally.left_out), (s.heads_q, 0));
        check("sinks", &with(None), s);
    }
}

/// Everything at once.
#[test]
fn gradients_of_all_options_together_are_slopes() {
    for s in SHAPES {
        let bias = sixty_fourths(s.scores(), 9);
        let a = Options::new()
            .scale(-0.9)
            .softcap(2.5)
            .bias(Bias::Dense64(bias))
            .causal_bottom_right()
            .sink(vec![0.3; s.heads_q])
            .dropout(0.25, 11);
        check("everything", &a, s);
    }
}
