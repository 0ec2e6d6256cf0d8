//! The first attention: four words, one of which asks.
//!
//! ```text
//! cargo run --release -p regard --example first_attention
//! ```

use ndarray::array;
use regard::Attention;

fn main() -> regard::Result<()> {
    let words = ["the", "cat", "sat", "down"];
    // [batch, head, sequence, dimension]: what each word offers (k), what it holds (v), and one question (q).
    let k = array![[[[0.0f32, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 2.0]]]];
    let v = array![[[[0.0f32], [1.0], [2.0], [3.0]]]];
    let q = array![[[[2.0f32, 0.0]]]];

    let attention = Attention::new();
    let weights = attention.weights(&q, &k)?;
    let result = attention.forward(&q, &k, &v)?;

    for (word, weight) in words.iter().zip(&weights) {
        println!("{word:>5} {weight:.3} {}", "#".repeat((weight * 40.0).round() as usize));
    }
    println!("\n  out {:.3}   (the weights' mean of 0, 1, 2, 3)", result.out[[0, 0, 0, 0]]);
    Ok(())
}
