//! The two-layer networks of a block.
//!
//! ```text
//! plain    y = f(x U + b) D + c
//! gated    y = (f(x G) * (x U)) D           G and U side by side in one matrix, or two matrices
//! experts  a router and several of these: see [`ExpertsConfig`]
//! ```

use super::activation::Activation;
use super::experts::Experts;
pub use super::experts::ExpertsConfig;
use super::linear::{Amount, Joined, Linear, Prepared, Strips, Write, add_to_rows};
use crate::float::{Float, kernel};
use crate::tensors::layout::{Gradients, Layout};
use crate::tensors::{Order, Weights};
use serde::{Deserialize, Serialize};

/// The networks that [`crate::ModelConfig`] knows by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MlpKind {
    /// One linear layer up, GELU, one down, with biases.
    #[default]
    Gelu,
    /// A gate with SiLU beside the layer up, without biases.
    SwiGlu,
}

/// The options of [`Mlp`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MlpConfig {
    /// Width of rows in and out.
    pub width: usize,
    /// Numbers between the two layers.
    pub hidden: usize,
    /// Between them.
    pub activation: Activation,
    /// A gate beside the layer up, which the activation is of.
    pub gated: bool,
    /// Gate and layer up are one matrix.
    pub joined: bool,
    /// Biases in all layers.
    pub bias: bool,
    /// How the matrices lie.
    pub order: Order,
    /// Several networks, of which a router chooses.
    pub experts: Option<ExpertsConfig>,
}

impl MlpConfig {
    /// One layer up, the activation, one layer down; everything else off.
    pub fn new(width: usize, hidden: usize, activation: Activation) -> Self {
        Self { width, hidden, activation, gated: false, joined: false, bias: false, order: Order::InOut, experts: None }
    }

    /// A network known by name.
    pub fn named(kind: MlpKind, width: usize, hidden: usize) -> Self {
        let gated = kind == MlpKind::SwiGlu;
        let activation = if gated { Activation::Silu } else { Activation::Gelu };
        Self { gated, joined: gated, bias: !gated, ..Self::new(width, hidden, activation) }
    }
}

/// The network of a block, from `width` over `hidden` to `width`.
#[derive(Debug, Clone)]
pub struct Mlp {
    config: MlpConfig,
    /// Of experts, those of the first.
    up: Joined,
    down: Linear,
    experts: Option<Experts>,
}

/// The matrices of a network, ready for products.
pub(crate) struct MlpReady<'w, T: Float> {
    up: Vec<Prepared<'w, T>>,
    down: Prepared<'w, T>,
}

impl Mlp {
    /// A network of these options.
    pub fn new(layout: &mut Layout, config: MlpConfig) -> Self {
        let MlpConfig { width, hidden, bias, order, .. } = config;
        let network = |layout: &mut Layout| {
            let up = match (config.gated, config.joined) {
                (false, _) => Joined::new(layout, width, &[("up", hidden)], bias, order),
                (true, true) => Joined::new(layout, width, &[("gate_up", 2 * hidden)], bias, order),
                (true, false) => Joined::new(layout, width, &[("gate", hidden), ("up", hidden)], bias, order),
            };
            (up, Linear::with_order(layout, "down", hidden, width, bias, order))
        };
        let experts = config.experts.map(|experts| Experts::new(layout, experts, width, network));
        let (up, down) = experts.as_ref().map_or_else(|| network(layout), Experts::first);
        Self { config, up, down, experts }
    }

    /// A part that has no backward pass.
    pub(crate) fn untrainable(&self) -> Option<&'static str> {
        self.experts.is_some().then_some("a mixture of experts")
    }

    /// The experts of each row with their shares; none of a plain network.
    pub(crate) fn routing<T: Float>(&self, w: &Weights<'_, T>, x: &[T]) -> Vec<Vec<(usize, T)>> {
        self.experts.as_ref().map_or_else(Vec::new, |experts| experts.routing(w, x))
    }

    /// Its options.
    pub fn config(&self) -> &MlpConfig {
        &self.config
    }

    /// Numbers per row before the activation.
    pub fn inner(&self) -> usize {
        self.up.outputs()
    }

    /// Numbers per row after it.
    pub fn hidden(&self) -> usize {
        self.config.hidden
    }

    /// Width of rows in and out.
    pub fn width(&self) -> usize {
        self.config.width
    }

    pub(crate) fn prepare<'w, T: Float>(&self, w: &'w Weights<'_, T>, amount: Amount, packs: &'w mut [Strips<T>]) -> MlpReady<'w, T> {
        let (last, first) = packs.split_last_mut().expect("room for the layer down");
        // Experts prepare their own matrices, of those that are chosen.
        let amount = if self.experts.is_some() { Amount::Few } else { amount };
        MlpReady { up: self.up.prepare(w, amount, first), down: self.down.prepare(w, amount, last) }
    }

    /// `y += mlp(x)` for rows on the calling thread; what the backward pass needs is left in `inner` and `act`.
    pub(crate) fn forward<T: Float>(
        &self,
        w: &Weights<'_, T>,
        ready: &MlpReady<'_, T>,
        x: &[T],
        inner: &mut [T],
        act: &mut [T],
        y: &mut [T],
    ) {
        let MlpConfig { gated, activation, hidden, width, .. } = self.config;
        if let Some(experts) = &self.experts {
            return experts.forward(w, &self.config, x, y);
        }
        self.up.product(&ready.up, x, inner);
        if gated {
            self.up.add_biases(w, inner);
            activation.apply_gated(hidden, inner, act);
        } else {
            activation.apply(self.up.parts()[0].bias(w), inner, act);
        }
        ready.down.product(act, hidden, y, width, 0, Write::Add);
        if let Some(bias) = self.down.bias(w) {
            add_to_rows(y, bias);
        }
    }

    pub(crate) fn pack_transposed<T: Float>(&self, w: &Weights<'_, T>, packs: &mut [Strips<T>]) {
        let (last, first) = packs.split_last_mut().expect("room for the layer down");
        self.up.pack_transposed(w, first);
        self.down.pack_transposed(w, last);
    }

    /// Gradient of rows on the calling thread: `dx` is written, `inner` (the derivative) becomes the gradient on what
    /// went into the activation; `d_act` is scratch.
    pub(crate) fn backward<T: Float>(&self, packs: &[Strips<T>], dy: &[T], d_act: &mut [T], inner: &mut [T], dx: &mut [T]) {
        let (last, first) = packs.split_last().expect("the layer down");
        self.down.input_gradient(last, dy, self.config.width, 0, d_act, Write::Replace);
        if self.config.gated {
            multiply_twice(self.config.hidden, inner, d_act);
        } else {
            multiply(inner, d_act);
        }
        self.up.input_gradient(first, inner, dx);
    }

    /// Gradients of the layer up, after [`Mlp::backward`] of all rows: x went in, `d_inner` is what `inner` became.
    pub(crate) fn up_gradient<T: Float>(&self, g: &mut Gradients<'_, T>, x: &[T], d_inner: &[T]) {
        self.up.weight_gradient(g, x, d_inner);
    }

    /// Gradients of the layer down.
    pub(crate) fn down_gradient<T: Float>(&self, g: &mut Gradients<'_, T>, act: &[T], dy: &[T]) {
        self.down.weight_gradient(g, act, dy, self.config.width, 0);
    }

    /// The whole network, `y = mlp(x)`; returns what [`Mlp::backward_all`] needs.
    pub fn forward_all<T: Float>(&self, w: &Weights<'_, T>, x: &[T], y: &mut [T]) -> [Vec<T>; 2] {
        let rows = x.len() / self.width().max(1);
        let (mut inner, mut act) = (vec![T::ZERO; rows * self.inner()], vec![T::ZERO; rows * self.hidden()]);
        let mut packs = super::linear::packs();
        y.fill(T::ZERO);
        self.forward(w, &self.prepare(w, Amount::Many, &mut packs), x, &mut inner, &mut act, y);
        [inner, act]
    }

    /// Backwards: writes dx, adds to the gradients.
    pub fn backward_all<T: Float>(
        &self,
        w: &Weights<'_, T>,
        g: &mut Gradients<'_, T>,
        x: &[T],
        [mut inner, act]: [Vec<T>; 2],
        dy: &[T],
        dx: &mut [T],
    ) {
        let mut packs = super::linear::packs();
        let mut d_act = vec![T::ZERO; act.len()];
        self.pack_transposed(w, &mut packs);
        self.backward(&packs, dy, &mut d_act, &mut inner, dx);
        self.up_gradient(g, x, &inner);
        self.down_gradient(g, &act, dy);
    }
}

kernel! {
    /// inner *= d_act
    fn multiply<'a, T>(inner: &'a mut [T], d_act: &'a [T]) -> () {
        for (inner, &d) in inner.iter_mut().zip(d_act) {
            *inner *= d;
        }
    }
}

kernel! {
    /// Both halves of each row of inner *= d_act
    fn multiply_twice<'a, T>(hidden: usize, inner: &'a mut [T], d_act: &'a [T]) -> () {
        for (inner, d_act) in inner.chunks_exact_mut(2 * hidden).zip(d_act.chunks_exact(hidden)) {
            let (gate, up) = inner.split_at_mut(hidden);
            for ((gate, up), &d) in gate.iter_mut().zip(up).zip(d_act) {
                *gate *= d;
                *up *= d;
            }
        }
    }
}
