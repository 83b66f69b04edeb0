"""What fills the slots that are no entities, and what faker lacks: well-known places, names that both have."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


FILLERS: dict[str, tuple[str, ...]] = {
    "title": _words("Mr. Mrs. Ms. Dr. Prof. Professor Judge Captain Sir Senator Sister Coach"),
    "day": _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    "month": _words("January February March April June July August September October November December"),
    "time": _phrases("noon, 6:15, 7:30, 9 o'clock, 10:45, half past eight, midnight, 3 pm"),
    "year": _words("1949 1961 1978 1984 1990 1999 2003 2011 2019 2024"),
    "num": _words("12 17 23 30 41 58 75 120 350 1,200 three seven twenty"),
    "job": _words(
        "teacher nurse baker lawyer farmer plumber painter carpenter doctor pilot singer journalist chemist cook "
        "driver librarian tailor photographer waiter"
    ),
    "relative": _words("sister brother cousin aunt uncle neighbour daughter son grandmother friend colleague"),
    "thing": _words("key letter bicycle camera lamp bucket phone notebook suitcase guitar clock ladder ticket kettle"),
    "food": _phrases("bread, cheese, fried rice, soup, apples, fish, chocolate, pancakes, olives, noodles"),
    "adj": _phrases("large, new, small, costly, quiet, beautiful, strange, cold, very green, rather dull"),
    "sport": _phrases("chess, football, tennis, handball, table tennis, cards, hockey, basketball"),
    "did": _phrases(
        "laughed, slept, won again, went home, came back, left early, arrived late, said nothing, fell ill, agreed, "
        "sang, resigned, disappeared, smiled, ran away"
    ),
    "went": _phrases(
        "lived in, moved to, went to, flew to, drove to, came from, grew up in, grew up near, lived near, worked "
        "outside, worked in, returned from, returned to, stayed in, died in, walked to, settled in, ran from, swam "
        "to, got lost in, retired to, escaped from, landed in"
    ),
    "met": _phrases(
        "met, thanked, called, asked, saw, helped, invited, followed, forgot, ignored, beat, interviewed, kissed, "
        "hugged, spoke to, talked to, waited for, shouted at, argued with, ate with"
    ),
    "does": _phrases(
        "laughs, sleeps, works too much, never cries, comes back, leaves early, is late, arrives on Sunday, says "
        "nothing, sings, knows everything, is ill, waits outside, is happy, drinks coffee"
    ),
    "goes": _phrases(
        "lives in, moves to, goes to, flies to, drives to, works in, returns from, stays in, walks to, travels to, "
        "will be in, has arrived in, has left for, must go to, is on the way to, writes from, studies in"
    ),
    "adv": _phrases(
        "yesterday, today, tomorrow, tonight, now, then, later, meanwhile, once, suddenly, sometimes, usually, last "
        "week, next year, at night, in the morning, unfortunately, luckily, perhaps, afterwards"
    ),
    "stuff": _phrases(
        "water, music, money, sand, coffee, paper, wood, salt, sugar, gold, snow, tea, rain, old furniture"
    ),
    "lang": _words("French German Spanish Hindi Arabic Korean Dutch Polish Swahili Latin"),
    "org": _phrases("Northwind, Globex, Initech, the Red Lantern, Acme, Bluebird Records, Vandelay, the city council"),
}

# Given names that places have too; some are family names as well.
PLACE_LIKE = _words(
    "Paris London Austin Chelsea Florence Sydney Jordan Georgia Virginia Carolina Dakota Savannah Brooklyn Phoenix "
    "Israel Kenya India Chad Milan Adelaide Victoria Charlotte Vienna Verona Siena Madison Lincoln Washington Houston "
    "Dallas Troy Lourdes Alexandria Devon Chester Kent Lancaster Hamilton Kingston Orlando Jackson Denver Geneva "
    "Catania Trinidad Camden Bristol Aurora Alma Salem Raleigh Lorraine Valencia Ravenna Petra Odessa Regina"
)

PLACES = _phrases(
    "Addis Ababa, Almaty, Amsterdam, Ankara, Antwerp, Athens, Auckland, Baghdad, Baku, Bangkok, Barcelona, Basra, "
    "Beijing, Beirut, Belfast, Belgrade, Berlin, Bogota, Bordeaux, Boston, Brasilia, Brisbane, Brussels, Bucharest, "
    "Budapest, Buenos Aires, Cairo, Calgary, Cape Town, Caracas, Casablanca, Chengdu, Chicago, Cincinnati, Cologne, "
    "Colombo, Copenhagen, Dakar, Damascus, Dar es Salaam, Delhi, Detroit, Dhaka, Dubai, Dublin, Edinburgh, Frankfurt, "
    "Fukuoka, Gdansk, Genoa, Glasgow, Gothenburg, Guadalajara, Hamburg, Hanoi, Harare, Havana, Helsinki, Ho Chi Minh "
    "City, Hong Kong, Honolulu, Islamabad, Istanbul, Jakarta, Jerusalem, Johannesburg, Kabul, Kampala, Karachi, "
    "Kathmandu, Kharkiv, Khartoum, Kigali, Kobe, Krakow, Kuala Lumpur, Kyiv, Kyoto, La Paz, Lagos, Lahore, Las Vegas, "
    "Leeds, Leipzig, Lima, Lisbon, Liverpool, Ljubljana, Los Angeles, Luanda, Lusaka, Lyon, Madrid, Malaga, "
    "Manchester, Manila, Maputo, Marrakesh, Marseille, Medellin, Melbourne, Memphis, Mexico City, Miami, Minneapolis, "
    "Minsk, Mogadishu, Mombasa, Monterrey, Montevideo, Montreal, Moscow, Munich, Mumbai, Nagoya, Nairobi, Naples, New "
    "Delhi, New Orleans, New York, New York City, Nicosia, Nuremberg, Osaka, Oslo, Ottawa, Oxford, Palermo, Panama "
    "City, Philadelphia, Phnom Penh, Pittsburgh, Porto, Prague, Pretoria, Pyongyang, Quito, Rabat, Reykjavik, Riga, "
    "Rio de Janeiro, Riyadh, Rome, Rotterdam, Saint Petersburg, Salt Lake City, Salzburg, San Antonio, San Diego, San "
    "Francisco, San Salvador, Santiago, Santo Domingo, Sao Paulo, Sapporo, Sarajevo, Seattle, Seoul, Seville, "
    "Shanghai, Sheffield, Shenzhen, Singapore, Sofia, Stockholm, Stuttgart, Surabaya, Taipei, Tallinn, Tashkent, "
    "Tbilisi, Tehran, Tel Aviv, The Hague, Thessaloniki, Tirana, Tokyo, Toronto, Toulouse, Tripoli, Tunis, Turin, "
    "Ulaanbaatar, Utrecht, Vancouver, Venice, Vientiane, Vilnius, Warsaw, Wellington, Winnipeg, Xian, Yangon, "
    "Yerevan, Yokohama, Zagreb, Zurich, Bavaria, Tuscany, Catalonia, Scotland, Wales, Brittany, Normandy, Siberia, "
    "Patagonia, Andalusia, Sicily, Sardinia, Crete, Silesia, Bohemia, Moravia, Transylvania, Lapland, Anatolia, "
    "Punjab, Kerala, Bengal, Sichuan, Quebec, Ontario, Alberta, Bali, Java, Sumatra, Hokkaido, Tasmania, Zanzibar, "
    "East Africa, Central Asia, Latin America, Northern Ireland, Lake Garda, Mount Fuji, Costa Rica, Sierra Leone, El "
    "Salvador"
)
