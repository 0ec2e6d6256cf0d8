//! `regard serve`: refused requests, and the page in a real browser.

mod accessibility;
mod auth;
mod chrome;
mod first_look;
mod lesson;
mod newcomer;
mod served;
mod two_texts;
mod views;
