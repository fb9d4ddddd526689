"""The paper's ablations and measurements. Each is a function and a row of `ablations.EXPERIMENTS`."""
