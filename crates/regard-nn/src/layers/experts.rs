//! A mixture of experts: a router sends each row through a few of several networks.
//!
//! ```text
//! y = sum over chosen experts e of share[e] * expert_e(x)         shares: softmax of the router's logits over the chosen ones
//! ```

use super::linear::{Amount, Joined, Linear, packs};
use super::mlp::MlpConfig;
use crate::float::Float;
use crate::tensors::layout::Layout;
use crate::tensors::{Order, Weights};

/// How many experts there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertsConfig {
    /// All.
    pub count: usize,
    /// Of each row.
    pub active: usize,
}

/// Router and networks.
#[derive(Debug, Clone)]
pub(crate) struct Experts {
    router: Linear,
    networks: Vec<(Joined, Linear)>,
    active: usize,
}

impl Experts {
    /// Networks that `network` makes, each within a name of its own.
    pub(crate) fn new(layout: &mut Layout, config: ExpertsConfig, width: usize, network: impl Fn(&mut Layout) -> (Joined, Linear)) -> Self {
        let router = Linear::with_order(layout, "router", width, config.count, false, Order::OutIn);
        let networks = (0..config.count).map(|number| layout.within(format!("experts.{number}"), &network)).collect();
        Self { router, networks, active: config.active.min(config.count) }
    }

    /// The first network, which has the shape of all.
    pub(crate) fn first(&self) -> (Joined, Linear) {
        self.networks.first().cloned().expect("at least one expert")
    }

    /// The chosen experts of each row and their shares, the largest first; of equal ones the lower number.
    pub(crate) fn routing<T: Float>(&self, w: &Weights<'_, T>, x: &[T]) -> Vec<Vec<(usize, T)>> {
        let count = self.networks.len();
        let mut logits = vec![T::ZERO; x.len() / self.router.inputs().max(1) * count];
        self.router.forward(w, x, &mut logits);
        let of_row = |logits: &[T]| {
            let mut chosen: Vec<(usize, f64)> = logits.iter().map(|x| x.to_f64()).enumerate().collect();
            // Stable, and NaN comes first: it must not be lost.
            chosen.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap_or_else(|| b.1.is_nan().cmp(&a.1.is_nan())));
            chosen.truncate(self.active);
            let largest = chosen.first().map_or(0.0, |first| first.1);
            chosen.iter_mut().for_each(|(_, x)| *x = (*x - largest).exp());
            let sum: f64 = chosen.iter().map(|(_, x)| x).sum();
            chosen.into_iter().map(|(expert, x)| (expert, T::from_f64(x / sum))).collect()
        };
        logits.chunks_exact(count.max(1)).map(of_row).collect()
    }

    /// `y += experts(x)` for rows on the calling thread.
    pub(crate) fn forward<T: Float>(&self, w: &Weights<'_, T>, config: &MlpConfig, x: &[T], y: &mut [T]) {
        let routing = self.routing(w, x);
        for (expert, (up, down)) in self.networks.iter().enumerate() {
            let share = |chosen: &Vec<(usize, T)>| chosen.iter().find(|(number, _)| *number == expert).map(|(_, share)| *share);
            let rows: Vec<(usize, T)> = routing.iter().enumerate().filter_map(|(row, chosen)| Some((row, share(chosen)?))).collect();
            if rows.is_empty() {
                continue;
            }
            let of_row = |row: usize| row * config.width..(row + 1) * config.width;
            let picked: Vec<T> = rows.iter().flat_map(|(row, _)| x[of_row(*row)].iter().copied()).collect();
            let (mut inner, mut act) = (vec![T::ZERO; rows.len() * up.outputs()], vec![T::ZERO; rows.len() * config.hidden]);
            up.forward(w, Amount::of(rows.len()), &mut packs(), &picked, &mut inner);
            if config.gated {
                config.activation.apply_gated(config.hidden, &mut inner, &mut act);
            } else {
                config.activation.apply(None, &mut inner, &mut act);
            }
            let mut made = vec![T::ZERO; rows.len() * config.width];
            down.forward(w, &act, &mut made);
            for ((row, share), made) in rows.iter().zip(made.chunks_exact(config.width.max(1))) {
                y[of_row(*row)].iter_mut().zip(made).for_each(|(y, &x)| *y = x.mul_add(*share, *y));
            }
        }
    }
}
