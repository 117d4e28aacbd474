"""WORDS → THOSE THAT CARRY NO SUBJECT: articles, prepositions, pronouns, conjunctions and auxiliaries.

Titles have few of them, so that what is common in sentences ("that", "an") looks as rare there as a name. Which
languages count is found from the texts: those whose words they have most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

COMMON = 0.5  # of the texts that the words of the commonest language have, for another one to count
LANGUAGES: Mapping[str, str] = {
    "Danish": """
        af alle alt anden at bag blev blive bliver da de dem den denne der deres dette dig din disse dog du efter eller
        en end er et for fordi fra før gennem ham han hans har havde have hende hendes her hos hun hvad hvem hver hvis
        hvor hvordan i ikke ind ingen jeg jer jo kan kun kunne man mange med meget mellem men mig min mit mod mod må
        ned noget nogle nu når og også om op os over på sig sin sit skal skulle som sådan til ud uden under var ved vi
        vil ville vor være været
    """,
    "Dutch": """
        aan af al alle als andere ben bij daar dan dat de der deze die dit doch door dus een en er ge geen geweest haar
        had heb hebben heeft hem het hier hij hoe hun iemand iets ik in is ja je kan kon kunnen maar me men met mij
        mijn moet na naar niet niets nog nu of om omdat ons ook op over reeds te tegen toch toen tot u uit uw van veel
        voor want waren was wat we wel werd wie wij wil worden wordt zal ze zelf zich zij zijn zo zonder zou
    """,
    "English": """
        a about above after again against all also am an and any are as at be because been before being below between
        both but by can could did do does doing down during each few for from further had has have having he her here
        hers him his how i if in into is it its itself just me more most my no nor not now of off on once only or other
        our ours out over own same she should so some such than that the their them then there these they this those
        through to too under until up upon us very was we were what when where which while who whom why will with would
        you your yours
    """,
    "Finnish": """
        ei eivät emme en et ette että he hän häneen hänen hänet hänestä häntä ja jo joka joiden joissa joita jolla jonka
        jos jossa josta jota jotka kanssa keitä ketkä ketä koska kuin kuinka kuka kun me meidän meidät meille meitä mikä
        miksi minkä minun minut minä missä mistä mitkä mitä mukaan mutta myös ne niiden niin niissä niistä niitä noiden
        noita nuo nyt näiden näin näitä nämä ole oli olin olisi olivat olla olleet ollut on ovat poikki se sekä sen
        siihen siinä siitä sinun sinä sitä siksi tai te teidän teitä tuo tuon tuota tämä tämän tästä tässä tätä vaan
        vai vaikka voi yli
    """,
    "French": """
        à ai au aux avait avec avoir c ce ceci cela celle celles celui ces cet cette ceux chez comme d dans de depuis
        des donc dont du elle elles en entre es est et été être eu eux fut il ils j je jusqu l la le les leur leurs lui
        m ma mais me même mes moi mon n ne nos notre nous on ont ou où par pas pour qu quand que quel quelle quelles
        quels qui quoi s sa sans se selon ses si soi son sont sous sur t ta te tes toi ton tu un une vers vos votre
        vous y
    """,
    "German": """
        ab aber als am an ander andere anderem anderen anderer anderes auch auf aus bei beim bin bis bist da dabei damit
        dann das dass dein deine dem den denn der des dessen die dies diese diesem diesen dieser dieses doch du durch
        ein eine einem einen einer eines er es euch euer für gegen habe haben hat hatte hier hinter ich ihm ihn ihnen
        ihr ihre ihrem ihren ihrer im in indem ins ist jede jedem jeden jeder jedes jene jener kann kein keine könnte
        man manche mein meine mich mir mit muss nach nicht nichts noch nun nur ob oder ohne sein seine seinem seinen
        seiner seit sich sie sind so solche soll sondern sonst über um und uns unser unter vom von vor war waren warum
        was weg weil welche welcher wenn wer werde werden wie wieder will wir wird wo wollen während zu zum zur zwar
        zwischen
    """,
    "Italian": """
        a abbia ad agli ai al alla alle allo anche avere aveva c che chi ci coi col come con contro cui d da dagli dai
        dal dalla dalle dallo degli dei del dell della delle dello di dopo dove e è ed era erano essere fra fu gli ha
        hanno ho i il in io l la le lei li lo loro lui ma mi mia mio ne negli nei nel nell nella nelle nello noi non
        nostra nostro o per perché più quale quando quanto quella quelle quelli quello questa queste questi questo se
        sei si sia sono sopra sotto su sua sue sugli sui sul sull sulla sulle suo suoi ti tra tu tutti tutto un una uno
        vi voi
    """,
    "Norwegian": """
        alle at av bare begge ble bli blir da de deg dei dem den denne der dere deres det dette di din disse du eg ein
        eit ei eller en enn er et etter for fordi fra før gjennom ha hadde han hans har henne hennes her hos hun hva
        hvem hver hvilken hvis hvor hvordan hvorfor i ikke ikkje ingen inn jeg kan kom kun kunne man mange med mellom
        men mens meg mitt min mot må ned noe noen nå når og også om opp oss over på seg selv sin sitt skal skulle slik
        so som til um under ut uten var ved vi vil ville være vært å
    """,
    "Portuguese": """
        a à ao aos aquela aquelas aquele aqueles aquilo as às até com como da das de dela delas dele deles depois do dos
        e é ela elas ele eles em entre era essa essas esse esses esta estas este estes eu foi foram há isso isto já lhe
        lhes mais mas me mesmo meu minha muito na nas nem no nos nós não o os ou para pela pelas pelo pelos por qual
        quando que quem são se sem ser seu seus só sob sobre sua suas também te tem tu um uma umas uns você
    """,
    "Spanish": """
        a al algo ante antes como con contra cual cuando de del desde donde durante e el él ella ellas ellos en entre
        era eran es esa esas ese eso esos esta está estas este esto estos fue ha hacia han hasta hay la las le les lo
        los más me mi mis mucho muy ni no nos nosotros o otra otras otro otros para pero poco por porque que qué quien
        se según ser si sin sobre son su sus también tanto te ti tiene todo todos tu tus u un una unas uno unos y ya yo
    """,
    "Swedish": """
        alla allt än är att av blev bli blir då de dem den denna deras dess dessa det detta dig din ditt du där efter ej
        eller en er ert ett för från genom ha hade han hans har henne hennes hon honom hur här hos i icke ingen inom
        inte jag ju kan kunde man med mellan men mig min mitt mot mycket ni nu när någon något några och om oss på samma
        sedan sig sin sina sitt själv ska skulle som så sådan till under upp ut utan vad var vara varför varit varje vem
        vi vid vilka vilken vår vårt åt över
    """,
}


def function_words(count: Callable[[str], float]) -> list[str]:
    """Return the function words of the languages that texts are in, given how many texts have a word.

    >>> counts = {"the": 9, "of": 5, "war": 2, "die": 1}
    >>> [word for word in function_words(lambda word: counts.get(word, 0)) if word in counts]
    ['of', 'the']
    """
    found = {language: [(word, count(word)) for word in words.split()] for language, words in LANGUAGES.items()}
    totals = {language: sum(number for _, number in words) for language, words in found.items()}
    least = max(COMMON * max(totals.values()), 1)
    return sorted(
        {word for language, total in totals.items() if total >= least for word, number in found[language] if number}
    )
