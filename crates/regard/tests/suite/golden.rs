//! Results that another implementation computed: PyTorch's own mathematics, in float64.

use crate::common::levels;
use crate::common::oracle::{self, Bias, Mask, Number, Options};
use ndarray::{Array3, Array4, ArrayD, IxDyn};
use regard::Real;
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    options: Asked,
    mask_kind: Option<String>,
    shapes: Shapes,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    mask: Option<Vec<Option<f32>>>,
    out: Vec<f64>,
    lse: Vec<Option<f64>>,
}

#[derive(Deserialize)]
struct Shapes {
    q: [usize; 4],
    k: [usize; 4],
    v: [usize; 4],
    mask: Option<[usize; 4]>,
    out: [usize; 4],
    lse: [usize; 3],
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Asked {
    causal: Option<String>,
    window: Option<[Option<usize>; 2]>,
    q_offset: Option<Vec<i64>>,
    kv_lens: Option<Vec<usize>>,
    scale: Option<f64>,
    softcap: Option<f64>,
}

impl Case {
    fn options(&self) -> Options {
        let mut a = Options::new();
        let o = &self.options;
        a = match o.causal.as_deref() {
            None => a,
            Some("top_left") => a.causal(),
            Some("bottom_right") => a.causal_bottom_right(),
            Some(other) => panic!("{}: causal {other}", self.name),
        };
        if let Some([left, right]) = o.window {
            a = a.mask(Mask::Window(left, right));
        }
        if let Some(offsets) = &o.q_offset {
            a = a.q_offsets(offsets.clone());
        }
        if let Some(lengths) = &o.kv_lens {
            a = a.key_lengths(lengths.clone());
        }
        if let Some(scale) = o.scale {
            a = a.scale(scale);
        }
        if let Some(cap) = o.softcap {
            a = a.softcap(cap);
        }
        let Some(mask) = &self.mask else { return a };
        let shape = self.shapes.mask.expect("a mask has a shape");
        match self.mask_kind.as_deref() {
            Some("bool") => {
                let table = mask.iter().map(|&x| x == Some(1.0)).collect();
                a.mask(Mask::Dense(Array4::from_shape_vec(shape, table).expect("the shape fits")))
            }
            Some("float") => {
                let numbers = mask.iter().map(|x| x.unwrap_or(f32::NEG_INFINITY)).collect();
                a.bias(Bias::Dense(Array4::from_shape_vec(shape, numbers).expect("the shape fits")))
            }
            other => panic!("{}: mask kind {other:?}", self.name),
        }
    }

    fn check<E: Number>(&self, tolerance: f64) {
        let array = |shape: [usize; 4], numbers: &[f32]| {
            let numbers = numbers.iter().map(|&x| E::from_real(E::Real::from_f64(x.into()))).collect();
            Array4::<E>::from_shape_vec(shape, numbers).expect("the shape fits")
        };
        let s = &self.shapes;
        let (q, k, v) = (array(s.q, &self.q), array(s.k, &self.k), array(s.v, &self.v));
        let out = ArrayD::from_shape_vec(IxDyn(&s.out), self.out.clone()).expect("the shape fits");
        let lse = self.lse.iter().map(|x| x.unwrap_or(f64::NEG_INFINITY)).collect();
        let lse = Array3::from_shape_vec(s.lse, lse).expect("the shape fits").into_dyn();
        let near = |what: &str, got: ArrayD<f64>, exact: &ArrayD<f64>| {
            assert_eq!(got.shape(), exact.shape(), "{what} of {}", self.name);
            for ((at, &x), &y) in got.indexed_iter().zip(exact) {
                assert!(x == y || (x - y).abs() <= tolerance, "{what} of {}: {x} instead of {y} at {at:?}", self.name);
            }
        };
        let options = self.options();
        let [wide_q, wide_k, wide_v] = [&q, &k, &v].map(|x| oracle::widened(x.view()));
        let judge = oracle::attention(&options, &wide_q, &wide_k, &wide_v);
        near("the judge's out", judge.out.into_dyn(), &out);
        near("the judge's lse", judge.lse.into_dyn(), &lse);
        for level in levels() {
            let got = options.attention().level(level).forward(&q, &k, &v).expect(&self.name);
            near("out", got.out.mapv(|x| x.to_real().to_f64()).into_dyn(), &out);
            near("lse", got.lse.mapv(|x| x.to_f64()).into_dyn(), &lse);
        }
    }
}

#[test]
fn results_are_those_of_another_implementation() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/attention.json");
    let file: File = serde_json::from_str(&std::fs::read_to_string(path).expect("the file is there")).expect("the file is in order");
    assert!(file.cases.len() >= 19);
    for case in &file.cases {
        // The results have all their digits: what is left is the order of sums.
        case.check::<f32>(2e-6);
        case.check::<f64>(1e-13);
    }
}
