//! `regard serve`: refused requests, and the page in a real browser.

mod auth;
mod chrome;
mod first_look;
mod served;
mod views;
