"""Deep Compression (Han, Mao and Dally 2016) as pure functions of arrays, and the file that holds a compressed model."""
