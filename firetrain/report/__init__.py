"""Reports about recorded runs: tables, plots, pages, exports."""
