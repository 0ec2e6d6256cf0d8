//! `regard serve`: refused requests, and the page in a real browser.

mod accessibility;
mod auth;
mod chrome;
mod commands;
mod first_look;
mod lesson;
mod models;
mod newcomer;
mod others;
mod scripts;
mod served;
mod states;
mod two_texts;
mod views;
