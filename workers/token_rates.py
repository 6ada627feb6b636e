"""Tokens of a byte, learned from what engines count: each answer's `usage` says how many its prompt had. No I/O."""

from typing import Final

from bus.tokens import TextBytes, TokenRates
from workers.least_squares import LeastSquares

#: Weight left to an answer after each newer one: a memory of about 200.
FORGETTING: Final = 0.995


class LearnedTokenRates:
    """Rates of one instance, from the prior towards what its tokenizer does.

    >>> learned = LearnedTokenRates()
    >>> for n in range(1, 100):
    ...     text = TextBytes(letters=n * 40, symbols=n % 9 * 10, wide=n % 4 * 30)
    ...     learned.learn(text, n * 10 + n % 9 * 4 + n % 4 * 12)
    >>> rates = learned.rates
    >>> round(rates.letters, 2), round(rates.symbols, 2), round(rates.wide, 2)
    (0.25, 0.4, 0.4)
    """

    def __init__(self, prior: TokenRates | None = None) -> None:
        prior = prior or TokenRates()
        # a prior is wrong by a third rather than by a factor: tokenizers differ less than engines
        self._fit = LeastSquares(
            (prior.letters, prior.symbols, prior.wide), forgetting=FORGETTING, start_deviation=1.0, clip=4.0
        )

    @property
    def rates(self) -> TokenRates:
        """What has been learned so far."""
        return TokenRates(*self._fit.coefficients)

    def learn(self, text: TextBytes, tokens: int) -> None:
        """A prompt of this text had `tokens` tokens."""
        self._fit.learn((text.letters, text.symbols, text.wide), tokens)
