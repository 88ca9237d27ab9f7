//! The two states that are compared: [`desired`], which volume must be on which node, and [`actual`], where volumes are
//! attached or may be.

pub mod actual;
pub mod desired;
