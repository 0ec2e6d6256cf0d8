//! Circuits: which edges between heads, networks, embedding and output carry the difference between two texts.
//!
//! ```text
//! writers   the embedding, each head's z W_O, each network
//! readers   queries, keys and values of each head, each network, the output; through norms of their own
//! edge      a writer's result as a reader gets it: put in from the corrupt text, all else clean
//! ```
//!
//! Attribution is the gradient at what a reader reads times the change of what a writer writes: one backward pass for all edges. Exact
//! patching runs the model with that reader's input changed. A circuit keeps its edges and gets all others from the corrupt text.

mod attribution;
mod bench;
mod find;
mod score;

pub use find::{EdgeFound, Found, NodeFound, Options, SizeFound, Store, rank_correlation};
pub use score::ScoreParts;

use crate::edits::{Edits, Shape, Sources};
use crate::error::{Error, Result};
use crate::model::Model;
use regard_nn::layers::probe::Operand;
use regard_nn::random::Draws;
use std::fmt;
use std::ops::Range;

/// What writes to the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Writer {
    /// The embedding, with all that is added to it.
    Embedding,
    /// A head's results through its part of the output projection.
    Head {
        /// Which layer.
        layer: usize,
        /// Which head.
        head: usize,
    },
    /// A layer's network.
    Network {
        /// Which layer.
        layer: usize,
    },
}

/// What reads the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reader {
    /// Queries of a query head; keys or values of a key head.
    Head {
        /// Which layer.
        layer: usize,
        /// Which query head, or which head of keys and values.
        head: usize,
        /// What is made of the rows.
        operand: Operand,
    },
    /// A layer's network.
    Network {
        /// Which layer.
        layer: usize,
    },
    /// The last norm and the logits.
    Output,
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedding => f.write_str("embedding"),
            Self::Head { layer, head } => write!(f, "L{layer}.H{head}"),
            Self::Network { layer } => write!(f, "L{layer}.mlp"),
        }
    }
}

impl fmt::Display for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head { layer, head, operand: Operand::Q } => write!(f, "L{layer}.H{head}.q"),
            Self::Head { layer, head, operand: Operand::K } => write!(f, "L{layer}.KV{head}.k"),
            Self::Head { layer, head, operand: Operand::V } => write!(f, "L{layer}.KV{head}.v"),
            Self::Network { layer } => write!(f, "L{layer}.mlp"),
            Self::Output => f.write_str("output"),
        }
    }
}

/// All writers, readers and edges of a model. Writers are in the order of a pass, so a reader's are the first ones.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    shape: Shape,
    readers: Vec<Reader>,
    /// How many writers each reader has.
    reach: Vec<usize>,
    /// The number of each reader's first edge; one more at the end.
    starts: Vec<usize>,
}

impl Graph {
    /// The graph of a model whose branches are added to the stream as they are.
    ///
    /// # Errors
    /// [`Error::NoHead`] for models whose norms stand after branches or sums, and for those without logits.
    pub fn of(model: &Model) -> Result<Self> {
        model.check_plain("circuits")?;
        let stack = model.transformer().stack();
        if !stack.is_additive() {
            return Err(Error::NoHead {
                what: "a circuit: its norms stand after branches or sums, where a head has no writing of its own",
            });
        }
        if !model.has_head() {
            return Err(Error::NoHead { what: "a circuit: a difference of logits is what edges are measured by" });
        }
        let shape = model.shape();
        let mut graph = Self { shape, readers: Vec::new(), reach: Vec::new(), starts: vec![0] };
        for layer in 0..shape.layers {
            let before = graph.first_of(layer);
            for (operand, heads) in [(Operand::Q, shape.heads), (Operand::K, shape.kv_heads), (Operand::V, shape.kv_heads)] {
                (0..heads).for_each(|head| graph.add(Reader::Head { layer, head, operand }, before));
            }
            let parallel = stack.is_parallel(2 * layer + 1);
            graph.add(Reader::Network { layer }, if parallel { before } else { before + shape.heads });
        }
        graph.add(Reader::Output, graph.first_of(shape.layers));
        Ok(graph)
    }

    fn add(&mut self, reader: Reader, reach: usize) {
        self.readers.push(reader);
        self.reach.push(reach);
        self.starts.push(self.starts.last().copied().unwrap_or(0) + reach);
    }

    /// Writers before a layer: the number of its first head.
    fn first_of(&self, layer: usize) -> usize {
        1 + layer * (self.shape.heads + 1)
    }

    /// Readers of a layer: heads, then the network.
    fn readers_of(&self, layer: usize) -> Range<usize> {
        let count = self.shape.heads + 2 * self.shape.kv_heads + 1;
        layer * count..(layer + 1) * count
    }

    /// All readers.
    pub fn readers(&self) -> &[Reader] {
        &self.readers
    }

    /// How many writers there are.
    pub fn writers(&self) -> usize {
        self.first_of(self.shape.layers)
    }

    /// A writer by its number.
    pub fn writer(&self, number: usize) -> Writer {
        let Some(number) = number.checked_sub(1) else { return Writer::Embedding };
        let (layer, head) = (number / (self.shape.heads + 1), number % (self.shape.heads + 1));
        if head == self.shape.heads { Writer::Network { layer } } else { Writer::Head { layer, head } }
    }

    /// How many edges there are.
    pub fn edges(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Edges of a reader, by the numbers of its writers.
    fn edges_of(&self, reader: usize) -> Range<usize> {
        self.starts[reader]..self.starts[reader + 1]
    }

    /// The two ends of an edge.
    pub fn ends(&self, edge: usize) -> (Writer, Reader) {
        let reader = self.starts.partition_point(|start| *start <= edge) - 1;
        (self.writer(edge - self.starts[reader]), self.readers[reader])
    }
}

/// A clean text, a corrupt one of the same length, and what tells them apart: the logit of `answer` minus that of `wrong` at a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// Whose prediction a circuit is to keep.
    pub clean: Vec<u32>,
    /// What all other edges get.
    pub corrupt: Vec<u32>,
    /// Whose next token.
    pub position: usize,
    /// What the clean text goes on with.
    pub answer: u32,
    /// What the corrupt text goes on with.
    pub wrong: u32,
}

impl Model {
    /// A pair of texts that differ in what they go on with: the most likely tokens, where none are given.
    ///
    /// # Errors
    /// When their lengths differ, or both go on with the same token.
    pub fn pair(&self, clean: Vec<u32>, corrupt: Vec<u32>, tokens: Option<[u32; 2]>) -> Result<Pair> {
        if clean.len() != corrupt.len() || clean.is_empty() {
            let reason =
                format!("the clean text has {} tokens and the corrupt one {}: give texts of one length", clean.len(), corrupt.len());
            return Err(Error::Tokens { reason });
        }
        let position = clean.len() - 1;
        let next = |ids: &[u32]| -> Result<u32> {
            let run = self.run(ids, &Edits::default(), &Sources::default())?;
            Ok(regard_nn::generate::argmax(&self.logits(&run.hidden().row(position).to_vec())?) as u32)
        };
        let [answer, wrong] = tokens.map_or_else(|| Ok::<_, Error>([next(&clean)?, next(&corrupt)?]), Ok)?;
        self.check_tokens(&[answer, wrong])?;
        if answer == wrong {
            let reason = format!("both texts go on with {:?}: there is no difference to explain; give other texts", self.piece(answer));
            return Err(Error::Tokens { reason });
        }
        Ok(Pair { clean, corrupt, position, answer, wrong })
    }

    /// Pairs for induction: random tokens that begin again. In the corrupt text two tokens of the first half are exchanged, so that what
    /// followed the last token is another one.
    pub fn repeated_pairs(&self, count: usize, seed: u64) -> Vec<Pair> {
        const HALF: usize = 12;
        let own = self.tokenizer().ok();
        let special = |id: u32| own.is_some_and(|t| t.eos_ids().contains(&id) || t.bos() == Some(id));
        let bos = own.and_then(|tokenizer| tokenizer.bos()).filter(|bos| (*bos as usize) < self.vocab());
        let pair = |number: usize| {
            let mut draws = Draws::at(seed, &[0xC12C, number as u64]);
            let mut half: Vec<u32> = Vec::new();
            let mut misses = 0;
            while half.len() < HALF {
                let id = draws.below(self.vocab()) as u32;
                misses += 1;
                // A vocabulary of few tokens cannot have all of them different.
                if !special(id) && (!half.contains(&id) || misses > 1000) {
                    half.push(id);
                }
            }
            // Tokens `a` and `b` of the first half are exchanged; the second half ends with `a`.
            let a = 3 + draws.below(HALF - 8);
            let b = a + 2 + draws.below(HALF - 3 - a);
            let mut other = half.clone();
            other.swap(a, b);
            let text = |first: &[u32]| bos.into_iter().chain(first.iter().copied()).chain(half[..=a].iter().copied()).collect::<Vec<u32>>();
            let (clean, corrupt) = (text(&half), text(&other));
            Pair { position: clean.len() - 1, clean, corrupt, answer: half[a + 1], wrong: half[b + 1] }
        };
        (0..count).map(pair).collect()
    }
}
