//! `regard serve`: who may come in, and what a real browser shows.

mod chrome;
mod door;
mod served;
mod views;
